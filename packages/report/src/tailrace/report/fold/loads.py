"""How full replicas were, what they generated, and how old the weights were that they did it with, over time."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from tailrace import contracts as c
from tailrace.pipeline.controller.members import REPLICA
from tailrace.pipeline.run.folding import Hears
from tailrace.report.fold.history import History
from tailrace.report.fold.series import Series

LAGS = 5  # running by versions behind: 0, 1, 2, 3, 4 or more
GENERATED, FIRST_LAG = 0, 1


class Loads:
    """Hears what replicas say of their load, and samples it at each tick.

    `running` and `kv` have a row for each watched replica, in the order of `replicas`: running trajectories, and the share of
    its KV cache in use; 0 while it is not up. `flow` holds response tokens per second of all, and running trajectories by
    versions behind the trainer, scaled up from those watched to all.
    """

    def __init__(self, history: History) -> None:
        self.hears: Hears = {
            c.Snapshot: self._said,
            c.Tick: self._sample,
            c.Start: self._start,
            c.Up: self._up,
            c.Down: self._down,
        }
        self._history = history
        self.replicas: tuple[str, ...] = ()
        self.running, self.kv, self.flow = Series(0), Series(0), Series(FIRST_LAG + LAGS)
        self._known: set[str] = set()
        self._seen: dict[str, c.Snapshot | None] = {}
        self._told_s: dict[str, float] = {}
        self._tokens, self._sampled_s = 0.0, 0.0

    @property
    def of(self) -> int:
        """Replicas that there ever were."""
        return len(self._known)

    def watch(self, replicas: Sequence[str], of: Sequence[str]) -> None:
        """Look at these replicas, out of those of the start. If these are all, later ones are looked at too."""
        self.replicas, self._known = tuple(replicas), set(of)
        self._seen = dict.fromkeys(replicas)
        self.running, self.kv = Series(len(replicas)), Series(len(replicas))

    def _start(self, now: float, event: c.Start) -> None:
        """A replica may be started later than the others; one that is known starts again after the driver's death."""
        del now
        if event.role != REPLICA or event.id in self._known:
            return
        if len(self.replicas) == self.of:
            self.replicas = (*self.replicas, event.id)
            self._seen[event.id] = None
            self.running.widen()
            self.kv.widen()
        self._known.add(event.id)

    def _said(self, now: float, event: c.Snapshot) -> None:
        since = self._told_s.get(event.replica, now)
        self._tokens += event.tokens_per_s * (now - since)
        self._told_s[event.replica] = now
        if event.replica in self._seen:
            self._seen[event.replica] = event

    def _up(self, now: float, event: c.Up) -> None:
        if event.role == REPLICA:
            self._told_s[event.id] = now
            if event.id in self._seen:
                self._seen[event.id] = None

    def _down(self, now: float, event: c.Down) -> None:
        del now
        if event.role == REPLICA and event.id in self._seen:
            self._seen[event.id] = None

    def close(self) -> None:
        """The log ends here."""
        self.running.close()
        self.kv.close()
        self.flow.close()

    def generated(self, begin_s: float, end_s: float) -> float:
        """Response tokens that were generated between two moments."""
        ends_s = [0.0, *self.flow.ends_s]
        overlaps = [max(0.0, min(until, end_s) - max(since, begin_s)) for since, until in pairwise(ends_s)]
        return sum(rate * length for rate, length in zip(self.flow.row(GENERATED), overlaps, strict=True))

    def _sample(self, now: float, event: c.Tick) -> None:
        del event
        if not self.replicas:
            return
        version = self._history.version
        seen = [self._seen[name] for name in self.replicas]
        running = [0 if shot is None else shot.running for shot in seen]
        self.running.add(now, running)
        self.kv.add(now, [0.0 if shot is None else shot.kv for shot in seen])
        elapsed_s = now - self._sampled_s
        flow = [self._tokens / elapsed_s if elapsed_s else 0.0, *[0.0] * LAGS]
        self._tokens, self._sampled_s = 0.0, now
        for shot, count in zip(seen, running, strict=True):
            if count and shot is not None and shot.version is not None:
                behind = min(LAGS - 1, max(0, version - shot.version))
                flow[FIRST_LAG + behind] += count * self.of / len(self.replicas)
        self.flow.add(now, flow)
