"""How full replicas were, what they generated, and how old the weights were that they did it with, over time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from tailrace import contracts as c
from tailrace.controller.members import REPLICA
from tailrace.controller.view import RunView
from tailrace.pipeline.run.figures.folding import Hears
from tailrace.report.fold.series import Series

LAGS = 5  # running by versions behind: 0, 1, 2, 3, 4 or more
GENERATED, FIRST_LAG = 0, 1
_COMES_OR_GOES = (c.Route, c.Finished, c.TurnEnded, c.Interrupted, c.Refused)
_MAY_TAKE_ANY = (c.Start, c.Restart, c.Stop, c.Down, c.Abort, c.Resumed)


@dataclass(slots=True)
class _Load:
    """One replica now, and summed over the time since the last sample.

    `waited` and `queued` are what the last two snapshots said to wait in its engine: a queue that both have is no moment's.
    """

    since_s: float
    running: int = 0
    queued: int = 0
    waited: int = 0
    kv: float = 0.0
    ran: float = 0.0
    busy_s: float = 0.0
    filled: float = 0.0

    def until(self, now: float) -> None:
        """Add the time until now."""
        elapsed_s = now - self.since_s
        self.ran += self.running * elapsed_s
        self.busy_s += elapsed_s if self.running else 0.0
        self.filled += self.kv * elapsed_s if self.running else 0.0
        self.since_s = now

    def sampled(self, elapsed_s: float) -> tuple[float, float, float]:
        """Means since the last sample: running, share of the time in which any did, share of the KV cache."""
        found = (self.ran / elapsed_s, self.busy_s / elapsed_s, self.filled / elapsed_s)
        self.ran = self.busy_s = self.filled = 0.0
        return found


class Loads:
    """Follows what each replica has, and samples at each tick what it had on average since the tick before.

    A trajectory runs from the command that routes it until it is finished or interrupted, or its replica is lost; what waits in
    the engine for room, as snapshots say, is left out. `running`, `busy` and `kv` have a row for each watched replica, in the
    order of `replicas`: running trajectories, the share of the time in which there was one, and the share of its KV cache in
    use as its snapshots say, 0 while nothing runs. `flow` holds response tokens per second of all, and running trajectories by
    versions behind the trainer, scaled up from those watched to all.
    """

    def __init__(self, run: RunView) -> None:
        self.hears: Hears = {
            **dict.fromkeys(_COMES_OR_GOES, self._came_or_went),
            **dict.fromkeys(_MAY_TAKE_ANY, self._any),
            c.Snapshot: self._said,
            c.Tick: self._sample,
            c.Up: self._up,
        }
        self._run = run
        self.replicas: tuple[str, ...] = ()
        self.running, self.busy, self.kv, self.flow = Series(0), Series(0), Series(0), Series(FIRST_LAG + LAGS)
        self._known: set[str] = set()
        self._loads: dict[str, _Load] = {}
        self._touched: dict[str, None] = {}
        self._told_s: dict[str, float] = {}
        self._tokens, self._sampled_s = 0.0, 0.0

    @property
    def of(self) -> int:
        """Replicas that there ever were."""
        return len(self._known)

    def watch(self, replicas: Sequence[str], of: Sequence[str]) -> None:
        """Look at these replicas, out of those of the start. If these are all, later ones are looked at too."""
        self.replicas, self._known = tuple(replicas), set(of)
        self._loads = {name: _Load(self._sampled_s) for name in replicas}
        self.running, self.busy, self.kv = (Series(len(replicas)) for _ in range(3))

    def _came_or_went(self, now: float, one: c.Route | c.Finished | c.TurnEnded | c.Interrupted | c.Refused) -> None:
        del now
        self._touched[one.replica] = None

    def _any(self, now: float, one: c.Event | c.Command) -> None:
        """A replica may be started later than the others; one that is known starts again after the driver's death."""
        self._touched.update(dict.fromkeys(self.replicas))
        if isinstance(one, c.Down | c.Restart) and one.role == REPLICA and one.id in self._loads:
            self._lost(now, one.id)
        if not isinstance(one, c.Start) or one.role != REPLICA or one.id in self._known:
            return
        if len(self.replicas) == self.of:
            self.replicas = (*self.replicas, one.id)
            self._loads[one.id] = _Load(now)
            for series in (self.running, self.busy, self.kv):
                series.widen()
        self._known.add(one.id)

    def _said(self, now: float, event: c.Snapshot) -> None:
        since = self._told_s.get(event.replica, now)
        self._tokens += event.tokens_per_s * (now - since)
        self._told_s[event.replica] = now
        load = self._loads.get(event.replica)
        if load is not None:
            load.until(now)
            load.kv, load.queued, load.waited = event.kv, min(load.waited, event.waiting), event.waiting
            self._touched[event.replica] = None

    def _up(self, now: float, event: c.Up) -> None:
        if event.role == REPLICA:
            self._told_s[event.id] = now
            if event.id in self._loads:
                self._lost(now, event.id)

    def _lost(self, now: float, replica: str) -> None:
        """What a process said that is gone tells nothing of the next one."""
        load = self._loads[replica]
        load.until(now)
        load.kv, load.queued, load.waited = 0.0, 0, 0

    def settle(self, now: float) -> None:
        """The end of an instant."""
        for name in self._touched:
            load = self._loads.get(name)
            if load is not None:
                held = self._run.held(name)
                load.until(now)
                load.running = max(held - load.queued, min(held, 1))
        self._touched.clear()

    def close(self) -> None:
        """The log ends here."""
        for series in (self.running, self.busy, self.kv, self.flow):
            series.close()

    def generated(self, begin_s: float, end_s: float) -> float:
        """Response tokens that were generated between two moments."""
        ends_s = [0.0, *self.flow.ends_s]
        overlaps = [max(0.0, min(until, end_s) - max(since, begin_s)) for since, until in pairwise(ends_s)]
        return sum(rate * length for rate, length in zip(self.flow.row(GENERATED), overlaps, strict=True))

    def while_busy(self, begin_s: float, end_s: float) -> tuple[float, float] | None:
        """Running trajectories and share of the KV cache, averaged over the time in which a replica ran any; None for none."""
        busy_s = ran = filled = 0.0
        since_s = 0.0
        for place, until_s in enumerate(self.busy.ends_s):
            if begin_s < until_s <= end_s:
                for running, busy, kv in zip(
                    *(series.column(place) for series in (self.running, self.busy, self.kv)), strict=True
                ):
                    busy_s += busy * (until_s - since_s)
                    ran += running * (until_s - since_s)
                    filled += kv * (until_s - since_s)
            since_s = until_s
        return (ran / busy_s, filled / busy_s) if busy_s else None

    def _sample(self, now: float, event: c.Tick) -> None:
        del event
        elapsed_s = now - self._sampled_s
        if not self.replicas or elapsed_s <= 0:
            return
        version = self._run.version
        flow = [self._tokens / elapsed_s, *[0.0] * LAGS]
        rows = []
        for name in self.replicas:
            load = self._loads[name]
            load.until(now)
            rows.append(load.sampled(elapsed_s))
            served = self._run.serves(name)
            if rows[-1][0] and served is not None:
                behind = min(LAGS - 1, max(0, version - served))
                flow[FIRST_LAG + behind] += rows[-1][0] * self.of / len(self.replicas)
        for series, row in zip((self.running, self.busy, self.kv), zip(*rows, strict=True), strict=True):
            series.add(now, row)
        self.flow.add(now, flow)
        self._tokens, self._sampled_s = 0.0, now
