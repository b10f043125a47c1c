"""Simulate a configuration and watch it: what its log adds up to is folded while it runs, as it is of a real run.

What watching costs is bounded: of a large fleet some replicas are watched, evenly chosen, and fewer of them the longer the run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from tailrace import contracts as c
from tailrace.controller.view import RunView
from tailrace.fleetsim.fleet.build import build_fleet
from tailrace.fleetsim.fleet.fleet import SimulatedFleet
from tailrace.fleetsim.host.simulator import Simulation
from tailrace.fleetsim.results.log import InstantLog
from tailrace.fleetsim.results.result import Result, result_of
from tailrace.pipeline.config.models import RunConfig
from tailrace.report.figures.steady import steady
from tailrace.report.figures.system import MODEL, TASK, Figures, facts
from tailrace.report.fold.folds import MOST_REPLICAS, Folds
from tailrace.runtime.executor.executor import Executor, Observer

FEWEST_REPLICAS = 16
MOST_VISITS = 60_000  # watched replicas times steps
TELL_EVERY_S = 0.1


@dataclass(frozen=True, slots=True)
class Watched:
    """A finished simulation with its observations.

    Args:
        name: the name for display.
        run: how it ended.
        wall_s: seconds that it took.
    """

    name: str
    config: RunConfig
    seed: int
    fleet: SimulatedFleet
    result: Result
    folds: Folds
    figures: Figures
    run: RunView
    wall_s: float


@dataclass(frozen=True, slots=True)
class SimulationProgress:
    """The progress of a simulation.

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


def watch(
    config: RunConfig,
    *,
    name: str = "",
    seed: int = 0,
    keep_events: bool = True,
    listener: Callable[[SimulationProgress], None] | None = None,
) -> Watched:
    """Simulate a configuration, as `tailrace.fleetsim.simulate` does, and watch it.

    Args:
        name: the name for display; the app's if empty.
        listener: called with the progress.

    Raises:
        TailraceError: the configuration is wrong, or the run would hang.
    """
    fleet = build_fleet(config, seed=seed)
    return watch_fleet(fleet, config, name=name or config.app, seed=seed, keep_events=keep_events, listener=listener)


def watch_fleet(
    fleet: SimulatedFleet,
    config: RunConfig,
    *,
    name: str,
    seed: int,
    keep_events: bool = True,
    listener: Callable[[SimulationProgress], None] | None = None,
    observers: Sequence[Observer] = (),
    log: InstantLog | None = None,
) -> Watched:
    """Simulate a fleet that `build_fleet` made, and watch it in the same way.

    Args:
        observers: further observers.
        log: stores the instants, which are then not kept in memory.

    Raises:
        TailraceError: the run would hang.
    """
    began = time.perf_counter()
    watcher = _Watcher(fleet, listener)
    simulation = Simulation(fleet, keep_events=keep_events, observers=(watcher, *observers), log=log)
    folds = watcher.begin(simulation.controller.view)
    simulation.run()
    folds.close()
    result = result_of(simulation)
    wall_s = time.perf_counter() - began
    figures = replace(_figures(name, fleet, folds, result), facts=_facts(fleet, config))
    return Watched(name, config, seed, fleet, result, folds, figures, simulation.controller.view, wall_s)


def _figures(name: str, fleet: SimulatedFleet, folds: Folds, result: Result) -> Figures:
    """What the log says of it; with what only the models count, and what they count more exactly: token by token."""
    figures = steady(folds, fleet.warm_up, name=name, fleet=fleet.description, gpus=result.gpus, simulated=True)
    begin_s, end_s = figures.measured_s
    tokens = {batch.version: batch.tokens for batch in result.batches}
    trained = sum(tokens[batch.version] for batch in folds.batches.trained[fleet.warm_up :])
    return replace(
        figures,
        tokens_per_s=trained / (end_s - begin_s) if end_s > begin_s else 0.0,
        generated_tokens_per_s=result.generated_tokens_per_s,
        staleness_mean=result.staleness_mean,
        staleness_max=result.staleness_max,
        staleness=result.staleness,
        kv_share=result.kv_share,
        prefill_share=result.prefill_share,
        preemptions=result.preemptions,
        latency_mean_s=result.latency_mean_s,
        latency_max_s=result.latency_max_s,
        devices=fleet.devices,
        price_per_hour=fleet.price_per_hour,
        goal=result.goal,
        finish_s=result.finish_s,
    )


def _facts(fleet: SimulatedFleet, config: RunConfig) -> dict[str, str]:
    """What a comparison must find alike: of a modelled fleet, its model and the lengths that are drawn."""
    table, found = config.fleet, facts(config)
    if table.get("model") is not None:
        found[MODEL] = str(table["model"])
    if table.get("model") is not None or table.get("workload") is not None:
        lines = str(fleet.workload.describe()).splitlines()
        found[TASK] = next((line for line in lines if line.startswith("response")), lines[0])
    return found


class _Watcher:
    """An observer of a simulation.

    Args:
        fleet: the simulated fleet.
        listener: called with the progress, at most ten times a second.
    """

    def __init__(self, fleet: SimulatedFleet, listener: Callable[[SimulationProgress], None] | None = None) -> None:
        self._listener, self._devices = listener, fleet.trainer_gpus
        self._steps = fleet.batches or fleet.spec.steps
        self._folds: Folds | None = None
        self._began = self._told = time.perf_counter()

    def begin(self, run: RunView) -> Folds:
        """Begin to fold a run. Returns the folds."""
        most = max(FEWEST_REPLICAS, min(MOST_REPLICAS, MOST_VISITS // max(1, self._steps)))
        self._folds = Folds(run, most=most, trainer_devices=self._devices)
        return self._folds

    def observe(self, now: float, events: Sequence[c.Event], commands: Sequence[c.Command], run: RunView) -> None:
        """One instant."""
        folds = self._folds or self.begin(run)
        folds.observe(now, events, commands)

    def tick(self, now: float, executor: Executor) -> None:
        """Tell how far it is."""
        wall = time.perf_counter()
        if self._listener is not None and wall - self._told >= TELL_EVERY_S:
            self._told = wall
            run = executor.controller.view
            self._listener(
                SimulationProgress(run.step, self._steps, now, wall - self._began, run.counts.trained_trajectories)
            )
