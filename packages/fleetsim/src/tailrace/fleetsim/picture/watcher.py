"""Watches a simulation while it runs: what is folded from its log, and how far it is.

What it costs is bounded: of a large fleet some replicas are watched, evenly chosen, and fewer of them the longer the run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tailrace import contracts as c
from tailrace.fleetsim.fleet import Fleet
from tailrace.pipeline.controller.view import RunView
from tailrace.pipeline.executor.executor import Executor
from tailrace.pipeline.run.reporting.folds import MOST_REPLICAS, Folds

FEWEST_REPLICAS = 16
MOST_VISITS = 60_000  # watched replicas times steps
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

    Args:
        fleet: what is simulated.
        listener: told how far it is, ten times in a second at most.
    """

    def __init__(self, fleet: Fleet, listener: Callable[[Progress], None] | None = None) -> None:
        self._listener = listener
        self._steps = fleet.batches or fleet.spec.steps
        most = max(FEWEST_REPLICAS, min(MOST_REPLICAS, MOST_VISITS // max(1, self._steps)))
        self.folds = Folds(fleet.spec, most=most)
        self._began = self._told = time.perf_counter()

    def observe(self, now: float, events: Sequence[c.Event], commands: Sequence[c.Command], run: RunView) -> None:
        """One instant."""
        del run
        self.folds.observe(now, events, commands)

    def tick(self, now: float, executor: Executor) -> None:
        """Tell how far it is."""
        wall = time.perf_counter()
        if self._listener is not None and wall - self._told >= TELL_EVERY_S:
            self._told = wall
            run = executor.controller.view
            self._listener(Progress(run.step, self._steps, now, wall - self._began, run.counts.trained_trajectories))
