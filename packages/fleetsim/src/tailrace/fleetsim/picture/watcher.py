"""Watches a simulation while it runs: what some members did when, how full replicas were, and the flow of trajectories.

What it costs is bounded. Of a large fleet some replicas are watched, evenly chosen, and fewer of them the longer the run;
loads are read at the ticks of the simulation; what nothing is drawn from is not looked at.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tailrace import contracts as c
from tailrace.fleetsim.picture.series import Series
from tailrace.pipeline.run.timeline import Timeline

if TYPE_CHECKING:
    from tailrace.fleetsim.simulator import Simulation
    from tailrace.pipeline.controller.controller import Controller
    from tailrace.pipeline.controller.fleet import ReplicaState

MOST_REPLICAS = 256
FEWEST_REPLICAS = 16
MOST_VISITS = 60_000  # watched replicas times steps
LAGS = 5  # in flight by versions behind: 0, 1, 2, 3, 4 or more
GENERATED, BUFFERED, POOLED, FIRST_LAG = 0, 1, 2, 3
TELL_EVERY_S = 0.1
QUIET = frozenset({c.Scored, c.ScoringFailed, c.Durable, c.Finished})  # what becomes idle says so in a snapshot


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
    """The observer of a simulation.

    `replicas` are the names of those watched, `loads` holds their running trajectories and then their shares of KV cache in
    use, `flow` what `GENERATED` to `FIRST_LAG` name: response tokens per second, groups in the buffer, trajectories in the
    pool, and trajectories in flight by versions behind the trainer. Flows of a sampled fleet are scaled up to all of it.
    `responses` holds the response tokens of the batch that made a version.

    Args:
        simulation: what is watched; set its `observer` to this.
        listener: told how far it is, ten times in a second at most.
    """

    def __init__(self, simulation: Simulation, listener: Callable[[Progress], None] | None = None) -> None:
        self._simulation, self._listener = simulation, listener
        self._steps = simulation.fleet.batches or simulation.fleet.spec.steps
        self.replicas: tuple[str, ...] = ()
        self.fleet_size = 0
        self.responses: dict[int, int] = {}
        self._parts: dict[int, dict[str, int]] = {}
        self._watched: frozenset[str] = frozenset()
        self.timeline = Timeline()
        self.loads = self.flow = Series(0)
        self._states: list[ReplicaState] = []
        self._generated, self._sampled_s = 0.0, 0.0
        self._began = self._told = time.perf_counter()

    @property
    def sampled(self) -> bool:
        """Whether only some replicas were watched."""
        return len(self.replicas) < self.fleet_size

    def observe(self, now: float, event: c.Event, commands: Sequence[c.Command], controller: Controller) -> None:
        """One event was handled."""
        if not self.replicas:
            self._choose(controller)
        kind = type(event)
        if kind is c.Tick:
            self._sample(now, controller)
        for command in commands:
            if isinstance(command, c.Step | c.Accumulate):
                self._batch(command, controller)
        if commands or (kind not in QUIET and self._seen(event)):
            self.timeline.observe(now, event, commands, controller)

    def close(self, now: float) -> None:
        """The simulation has ended."""
        self.timeline.close(now)
        self.loads.close()
        self.flow.close()

    def _choose(self, controller: Controller) -> None:
        """Once the controller has started its replicas."""
        names = list(controller.fleet.replicas)
        self.fleet_size = len(names)
        most = max(FEWEST_REPLICAS, min(MOST_REPLICAS, MOST_VISITS // max(1, self._steps)))
        count = min(len(names), most)
        self.replicas = tuple(names[place * len(names) // count] for place in range(count))
        self._watched = frozenset(self.replicas)
        self._states = [controller.fleet.replicas[name] for name in self.replicas]
        if self.sampled:
            self.timeline = Timeline(self._watched.__contains__)
        self.loads, self.flow = Series(2 * count), Series(FIRST_LAG + LAGS)

    def _batch(self, command: c.Step | c.Accumulate, controller: Controller) -> None:
        """What is trained on, while the ledger knows how long it is. A trainer that died does its parts again."""
        names = command.trajectories if isinstance(command, c.Accumulate) else sum(command.mini_batches, ())
        known = controller.ledger.trajectories
        self._parts.setdefault(command.version, {}).update((name, known[name].tokens) for name in names)
        if isinstance(command, c.Step):
            self.responses[command.version] = sum(self._parts.pop(command.version).values())

    def _seen(self, event: c.Event) -> bool:
        """Whether it may change what a watched member does. A snapshot of one that works does not."""
        if isinstance(event, c.Snapshot) and (event.running or event.waiting or event.in_environment):
            return False
        replica = getattr(event, "replica", None)
        return replica is None or replica in self._watched

    def _sample(self, now: float, controller: Controller) -> None:
        states, replicas = self._states, self._simulation.replicas
        running = [state.running for state in states]
        self.loads.add(now, [*running, *(state.kv for state in states)])
        generated = float(sum(replicas[name].engine.tokens for name in self.replicas if name in replicas))
        scale = self.fleet_size / len(self.replicas)
        elapsed_s = now - self._sampled_s
        rate = scale * (generated - self._generated) / elapsed_s if elapsed_s else 0.0
        self._generated, self._sampled_s = generated, now
        flow = [rate, float(len(controller.ledger.buffered)), float(controller.ledger.pooled), *[0.0] * LAGS]
        newest = controller.learner.version
        for state, count in zip(states, running, strict=True):
            if count and state.version is not None:
                flow[FIRST_LAG + min(LAGS - 1, max(0, newest - state.version))] += scale * count
        self.flow.add(now, flow)
        self._tell(now, controller)

    def _tell(self, now: float, controller: Controller) -> None:
        if self._listener is None:
            return
        wall = time.perf_counter()
        if wall - self._told >= TELL_EVERY_S:
            self._told = wall
            trained = controller.ledger.counts.trained_trajectories
            self._listener(Progress(controller.learner.step, self._steps, now, wall - self._began, trained))
