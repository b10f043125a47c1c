"""Simulate a configuration and watch it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tailrace.fleetsim.build import build_fleet
from tailrace.fleetsim.fleet import Fleet
from tailrace.fleetsim.log import InstantLog
from tailrace.fleetsim.picture.watcher import Progress, Watcher
from tailrace.fleetsim.recorder import Row
from tailrace.fleetsim.result import Result, result_of
from tailrace.fleetsim.simulator import Simulation
from tailrace.pipeline.config.models import RunConfig
from tailrace.pipeline.controller.view import RunView
from tailrace.pipeline.executor.executor import Observer
from tailrace.pipeline.run.reporting.folds import Folds
from tailrace.pipeline.run.reporting.timeline_chart import Utilisation, utilisation


@dataclass(frozen=True, slots=True)
class Watched:
    """A simulation that has run, with what was seen of it.

    Args:
        name: for a person.
        rows: every batch, with its trajectories by staleness.
        run: how it ended.
        wall_s: seconds that it took.
    """

    name: str
    config: RunConfig
    seed: int
    fleet: Fleet
    result: Result
    folds: Folds
    rows: list[Row]
    run: RunView
    wall_s: float

    @property
    def measured_s(self) -> tuple[float, float]:
        """From the end of the warm-up to the last batch, or to the end of a run that gave up."""
        begin_s = self.rows[self.fleet.warm_up - 1].at_s if 0 < self.fleet.warm_up <= len(self.rows) else 0.0
        return begin_s, self.rows[-1].at_s if self.rows else self.result.duration_s

    @property
    def measured(self) -> list[Row]:
        """The batches in that time."""
        return self.rows[self.fleet.warm_up :]

    def responses(self, version: int) -> int:
        """Response tokens of the batch that made a version."""
        return sum(self.folds.observed.batches[version].lengths)

    def utilisation(self) -> list[Utilisation]:
        """How the members of each role spent the measured time, of those that were watched."""
        return utilisation(self.folds.timeline.spans, *self.measured_s)


def watch(
    config: RunConfig,
    *,
    name: str = "",
    seed: int = 0,
    keep_events: bool = True,
    listener: Callable[[Progress], None] | None = None,
) -> Watched:
    """Simulate a configuration, as `tailrace.fleetsim.simulate` does, and watch it.

    Args:
        name: for a person; the app's if empty.
        listener: told how far it is.

    Raises:
        TailraceError: one line that says what is wrong with the configuration, or that the run would hang.
    """
    fleet = build_fleet(config, seed=seed)
    return watch_fleet(fleet, config, name=name or config.app, seed=seed, keep_events=keep_events, listener=listener)


def watch_fleet(
    fleet: Fleet,
    config: RunConfig,
    *,
    name: str,
    seed: int,
    keep_events: bool = True,
    listener: Callable[[Progress], None] | None = None,
    observers: Sequence[Observer] = (),
    log: InstantLog | None = None,
) -> Watched:
    """The same on a fleet that was built.

    Args:
        observers: that see it too.
        log: where instants are written instead of being kept.

    Raises:
        TailraceError: the run would hang.
    """
    began = time.perf_counter()
    watcher = Watcher(fleet, listener)
    simulation = Simulation(fleet, keep_events=keep_events, observers=(watcher, *observers), log=log)
    simulation.run()
    watcher.folds.close()
    return Watched(
        name=name,
        config=config,
        seed=seed,
        fleet=fleet,
        result=result_of(simulation),
        folds=watcher.folds,
        rows=simulation.world.recorder.rows,
        run=simulation.controller.view,
        wall_s=time.perf_counter() - began,
    )
