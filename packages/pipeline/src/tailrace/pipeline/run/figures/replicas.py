"""Replicas that a run added and removed, loans of their devices, and how they pulled, from its log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tailrace import contracts as c
from tailrace.controller.members import REPLICA
from tailrace.pipeline.run.figures.batches import mean

_FAILED = frozenset({c.Why.FAILED, c.Why.MACHINE, *c.SUSPICIONS})


class ReplicaFigures:
    """A fold over the instants of a log.

    Attributes:
        added: replicas that were started after the run's start. A replica that takes the place of a dead one does not count.
        removed: replicas that were stopped. A replica that failed does not count.
        checked: pulls after which digests of what the engine had were compared.
        from_peers: pulls that were complete with another replica's weights.
        lend_s: seconds of each loan of devices to the trainer, from `Lend` until the replica had left.
        return_s: seconds of each return, from the `Offload` of the trainer's cells there until the replica was awake again;
            from `Return` where the cells did not leave in this loan.
        sleeps: how often an engine slept.
        freed: an engine's bytes awake, asleep and awake again, of the sleep that freed most.
        offloads: seconds and bytes of each time that a cell of the trainer left its devices.
        onloads: seconds and bytes of each time that the trainer brought something back to train. What comes back for one
            publication or checkpoint, and leaves again, does not count.
    """

    def __init__(self) -> None:
        self._offers: set[str] = set()  # addresses of replicas
        self.from_peers = 0
        self.added = self.removed = 0
        self._began = False
        self.sleeps = self.checked = 0
        self.freed: tuple[int, int, int | None] | None = None
        self.lend_s: list[float] = []
        self.return_s: list[float] = []
        self.offloads: list[tuple[float, int]] = []
        self.onloads: list[tuple[float, int]] = []
        self._given_s: dict[int, float] = {}  # when `Lend`, `Return` and `Offload` were given, by their numbers
        self._left_s: dict[int, float] = {}  # seconds that the cell took to leave, last
        self._cells: dict[str, tuple[int, ...]] = {}  # of each replica that lends
        self._most = ""  # the replica whose sleep freed most, until it is awake again

    def observe(self, now: float, events: Sequence[c.Event], commands: Sequence[c.Command]) -> None:
        """Take in one instant."""
        for event in events:
            if isinstance(event, c.Pulled):
                self.checked += event.compared > 0
                self.from_peers += event.source in self._offers
            elif isinstance(event, c.Up) and event.role == REPLICA and event.address:
                self._offers.add(event.address)
            else:
                self._changes_hands(now, event)
        began = self._began
        for command in commands:
            if isinstance(command, c.Start):
                self._began = True
                self.added += began and command.role == REPLICA
            elif isinstance(command, c.Stop):
                self.removed += command.role == REPLICA and command.reason.why not in _FAILED
            elif isinstance(command, c.Lend | c.Return | c.Offload):
                self._given_s[command.seq] = now
                if isinstance(command, c.Lend):
                    self._cells[command.replica] = command.cells
                    for cell in command.cells:
                        self._left_s.pop(cell, None)

    def plain(self) -> dict[str, Any]:
        """The figures as fields of a summary. Seconds of loans are means."""
        names = ("awake_bytes", "asleep_bytes", "awake_again_bytes")
        freed = (
            {} if self.freed is None else {"sleep": {"times": self.sleeps, **dict(zip(names, self.freed, strict=True))}}
        )
        loans = {}
        if self.lend_s:
            loans = {
                "loans": len(self.lend_s),
                "lend_s": round(mean(self.lend_s), 4),
                "return_s": round(mean(self.return_s), 4),
                "offload": _moves(self.offloads),
                "onload": _moves(self.onloads),
            }
        changed = {"replicas_added": self.added, "replicas_removed": self.removed}
        pulls = {"served_digests_checked": self.checked}
        if self._offers:
            pulls["pulled_from_replicas"] = self.from_peers
        return {**changed, **pulls, **freed, **loans}

    def _changes_hands(self, now: float, event: c.Event) -> None:
        match event:
            case c.Lent(answers=int(seq)) if (given_s := self._given_s.pop(seq, None)) is not None:
                self.lend_s.append(now - given_s)
                if event.level:
                    self._slept(event)
            case c.Returned(answers=int(seq)) if (given_s := self._given_s.pop(seq, None)) is not None:
                left_s = max((self._left_s.get(cell, 0.0) for cell in self._cells.get(event.replica, ())), default=0.0)
                self.return_s.append(now - given_s + left_s)
                if event.awake_bytes and event.replica == self._most and self.freed is not None:
                    self.freed, self._most = (*self.freed[:2], event.awake_bytes), ""
            case c.Offloaded(answers=int(seq)) if (given_s := self._given_s.pop(seq, None)) is not None:
                self._left_s[event.cell] = now - given_s
                self.offloads.append((event.seconds, event.nbytes))
            case c.Stepped(metrics=metrics) | c.Accumulated(metrics=metrics) if "onload_s" in metrics:
                self.onloads.append((metrics["onload_s"], int(metrics.get("onload_bytes", 0))))
            case _:
                pass

    def _slept(self, event: c.Lent) -> None:
        self.sleeps += 1
        if self.freed is None or event.awake_bytes - event.asleep_bytes > self.freed[0] - self.freed[1]:
            self.freed, self._most = (event.awake_bytes, event.asleep_bytes, None), event.replica


def _moves(moves: Sequence[tuple[float, int]]) -> dict[str, Any]:
    """How often something was moved, the mean seconds, and the most bytes."""
    return {
        "times": len(moves),
        "seconds": round(mean([seconds for seconds, _ in moves]), 4),
        "bytes": max((nbytes for _, nbytes in moves), default=0),
    }
