"""Replicas that a run added and removed, what they freed while they slept, and how they pulled, from its log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tailrace import contracts as c
from tailrace.controller.members import REPLICA

_FAILED = frozenset({c.Why.FAILED, c.Why.MACHINE, *c.SUSPICIONS})


class ReplicaFigures:
    """A fold over the instants of a log.

    `added` counts replicas that were started beyond those of the run's start; one that takes the place of a dead one is none of
    them. `removed` counts replicas that were stopped; one that failed is none of them. `sleeps` counts how often a replica
    slept, and `freed` has its memory awake, asleep and awake again, of the sleep that freed most. `checked` counts pulls after
    which digests of what the engine had were compared, `from_peers` those that were complete with another replica's weights.
    """

    def __init__(self) -> None:
        self._offers: set[str] = set()  # addresses of replicas
        self.from_peers = 0
        self.added = self.removed = 0
        self._began = False
        self.sleeps = self.checked = 0
        self.freed: tuple[int, int, int | None] | None = None
        self._levels: dict[str, int] = {}
        self._most = ""  # the replica whose sleep freed most, until it is awake again

    def observe(self, now: float, events: Sequence[c.Event], commands: Sequence[c.Command]) -> None:
        """Take in one instant."""
        del now
        for event in events:
            if isinstance(event, c.Snapshot):
                self._look(event)
            elif isinstance(event, c.Pulled):
                self.checked += event.compared > 0
                self.from_peers += event.source in self._offers
            elif isinstance(event, c.Up) and event.role == REPLICA and event.address:
                self._offers.add(event.address)
        began = self._began
        for command in commands:
            if isinstance(command, c.Start):
                self._began = True
                self.added += began and command.role == REPLICA
            elif isinstance(command, c.Stop):
                self.removed += command.role == REPLICA and command.reason.why not in _FAILED

    def plain(self) -> dict[str, Any]:
        """The figures as fields of a summary."""
        names = ("awake_bytes", "asleep_bytes", "awake_again_bytes")
        freed = (
            {} if self.freed is None else {"sleep": {"times": self.sleeps, **dict(zip(names, self.freed, strict=True))}}
        )
        changed = {"replicas_added": self.added, "replicas_removed": self.removed}
        pulls = {"served_digests_checked": self.checked}
        if self._offers:
            pulls["pulled_from_replicas"] = self.from_peers
        return {**changed, **pulls, **freed}

    def _look(self, shown: c.Snapshot) -> None:
        before = self._levels.get(shown.replica, 0)
        self._levels[shown.replica] = shown.asleep
        if shown.asleep and not before:
            self.sleeps += 1
            if self.freed is None or shown.awake_bytes - shown.memory_bytes > self.freed[0] - self.freed[1]:
                self.freed, self._most = (shown.awake_bytes, shown.memory_bytes, None), shown.replica
        elif before and not shown.asleep and shown.memory_bytes and shown.replica == self._most and self.freed:
            self.freed, self._most = (*self.freed[:2], shown.memory_bytes), ""
