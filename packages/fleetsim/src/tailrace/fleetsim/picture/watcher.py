"""Watches a simulation while it runs: what some members did when, how full replicas were, and the flow of trajectories.

What it costs is bounded. Of a large fleet some replicas are watched, evenly chosen, and fewer of them the longer the run;
loads are read at the ticks of the simulation; what nothing is drawn from is not looked at.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tailrace import contracts as c
from tailrace.fleetsim.fleet import Fleet
from tailrace.fleetsim.picture.series import Series
from tailrace.pipeline.controller.members import REPLICA
from tailrace.pipeline.controller.view import RunView
from tailrace.pipeline.executor.executor import Executor
from tailrace.pipeline.run.history import History
from tailrace.pipeline.run.reporting.observed import Observed
from tailrace.pipeline.run.timeline import Timeline

MOST_REPLICAS = 256
FEWEST_REPLICAS = 16
MOST_VISITS = 60_000  # watched replicas times steps
LAGS = 5  # in flight by versions behind: 0, 1, 2, 3, 4 or more
GENERATED, BUFFERED, POOLED, FIRST_LAG = 0, 1, 2, 3
TELL_EVERY_S = 0.1


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a simulation is.

    Args:
        now_s: simulated seconds.
        wall_s: seconds that it has taken.
        trajectories: trained on.
    """

    step: int
    steps: int
    now_s: float
    wall_s: float
    trajectories: int

    @property
    def trajectories_per_s(self) -> float:
        """Trajectories simulated in a second of the wall clock."""
        return self.trajectories / self.wall_s if self.wall_s else 0.0


class Watcher:
    """An observer of a simulation.

    `replicas` are the names of those watched, `loads` holds their running trajectories and then their shares of KV cache in
    use, `flow` what `GENERATED` to `FIRST_LAG` name: response tokens per second, groups in the buffer, trajectories in the
    pool, and trajectories in flight by versions behind the trainer. Flows of a sampled fleet are scaled up to all of it.

    Args:
        fleet: what is simulated.
        listener: told how far it is, ten times in a second at most.
    """

    def __init__(self, fleet: Fleet, listener: Callable[[Progress], None] | None = None) -> None:
        self._listener = listener
        self._steps = fleet.batches or fleet.spec.steps
        self.engines: Callable[[str], float] = lambda _: 0.0
        """Response tokens that the engine of a replica has generated."""
        self.replicas: tuple[str, ...] = ()
        self.fleet_size = 0
        self.history, self.observed, self.timeline = History(fleet.spec), Observed(), Timeline()
        self.loads = self.flow = Series(0)
        self._seen: dict[str, c.Snapshot | None] = {}
        self._generated, self._sampled_s = 0.0, 0.0
        self._began = self._told = time.perf_counter()

    @property
    def sampled(self) -> bool:
        """Whether only some replicas were watched."""
        return len(self.replicas) < self.fleet_size

    def responses(self, version: int) -> int:
        """Response tokens of the batch that made a version."""
        return sum(self.observed.batches[version].lengths)

    def observe(self, now: float, events: Sequence[c.Event], commands: Sequence[c.Command], run: RunView) -> None:
        """One instant."""
        history, seen = self.history, self._seen
        history.observe(now, events, commands)
        if not self.replicas:
            self._choose()
        for event in events:
            if type(event) is c.Snapshot and event.replica in seen:
                seen[event.replica] = event
            elif type(event) is c.Up and event.id in seen and event.role == REPLICA:
                seen[event.id] = None
            elif type(event) is c.Tick:
                self._sample(now, run)
        self.observed.observe(now, events, commands, history)
        self.timeline.observe(now, events, commands, history)

    def tick(self, now: float, executor: Executor) -> None:
        """Tell how far it is."""
        wall = time.perf_counter()
        if self._listener is not None and wall - self._told >= TELL_EVERY_S:
            self._told = wall
            run = executor.controller.view
            self._listener(Progress(run.step, self._steps, now, wall - self._began, run.counts.trained_trajectories))

    def close(self, now: float) -> None:
        """The simulation has ended."""
        self.timeline.close(now)
        self.loads.close()
        self.flow.close()

    def _choose(self) -> None:
        """Once the controller has started its replicas."""
        names = [id_ for role, id_ in self.history.members if role == REPLICA]
        self.fleet_size = len(names)
        most = max(FEWEST_REPLICAS, min(MOST_REPLICAS, MOST_VISITS // max(1, self._steps)))
        count = min(len(names), most)
        self.replicas = tuple(names[place * len(names) // count] for place in range(count))
        self._seen = dict.fromkeys(self.replicas)
        if self.sampled:
            self.timeline = Timeline(self._seen.__contains__)
        self.loads, self.flow = Series(2 * count), Series(FIRST_LAG + LAGS)

    def _sample(self, now: float, run: RunView) -> None:
        seen = [self._seen[name] for name in self.replicas]
        running = [0 if snapshot is None else snapshot.running for snapshot in seen]
        self.loads.add(now, [*running, *(0.0 if snapshot is None else snapshot.kv for snapshot in seen)])
        generated = sum(map(self.engines, self.replicas))
        scale = self.fleet_size / len(self.replicas)
        elapsed_s = now - self._sampled_s
        rate = scale * (generated - self._generated) / elapsed_s if elapsed_s else 0.0
        self._generated, self._sampled_s = generated, now
        flow = [rate, float(run.buffered), float(run.pooled), *[0.0] * LAGS]
        for snapshot, count in zip(seen, running, strict=True):
            if count and snapshot is not None and snapshot.version is not None:
                flow[FIRST_LAG + min(LAGS - 1, max(0, run.version - snapshot.version))] += scale * count
        self.flow.add(now, flow)
