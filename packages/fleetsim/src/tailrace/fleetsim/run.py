"""The one call: a configuration in, a result out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tailrace.contracts import TailraceError
from tailrace.fleetsim.fleet.build import build_fleet
from tailrace.fleetsim.host.simulator import Simulation
from tailrace.fleetsim.processes import in_processes
from tailrace.fleetsim.results.log import MemoryLog
from tailrace.fleetsim.results.result import Result, result_of
from tailrace.pipeline.config.loading import parse_setting, validate
from tailrace.pipeline.config.models import RunConfig
from tailrace.pipeline.config.target import configuration
from tailrace.runtime.executor.executor import Observer

Job = tuple[RunConfig, int]
"""A configuration and a seed."""


def simulate(
    config: str | Path | Mapping[str, Any] | RunConfig,
    *,
    seed: int = 0,
    settings: tuple[str, ...] = (),
    observer: Observer | None = None,
    keep_events: bool = True,
) -> Result:
    """Run a pipeline on a simulated fleet.

    Args:
        config: a TOML file, the name of an app (its quick start), or a configuration as a mapping or as it was read already.
        seed: seed of lengths, rewards and failures. The same seed gives the same event log, byte for byte.
        settings: ``key=value`` laid over a file or quick start.
        observer: sees every event with the commands that followed.
        keep_events: keep the event log in the result; it takes memory.

    Raises:
        TailraceError: the configuration is wrong, or the run would hang.
    """
    if isinstance(config, RunConfig):
        read = config
    elif isinstance(config, Mapping):
        read = validate([("configuration", config), *((f"--set {text}", parse_setting(text)) for text in settings)])
    else:
        read = configuration(str(config), settings=settings)
    observers = () if observer is None else (observer,)
    simulation = Simulation(build_fleet(read, seed=seed), observers=observers, keep_events=keep_events)
    simulation.run()
    return result_of(simulation)


def simulate_many(jobs: Sequence[Job], *, processes: int | None = None) -> Iterator[tuple[int, Result | TailraceError]]:
    """Simulate all; each yields its place in `jobs` and its result, or why it could not be, in the order they are done.

    Results have no event log.

    Args:
        processes: number of processes at once; None: one per processor core. With 1, this process does all.
    """
    return in_processes(_one, jobs, processes=processes)


def _one(job: Job) -> Result | TailraceError:
    config, seed = job
    try:
        return replace(simulate(config, seed=seed, keep_events=False), events=MemoryLog(()))
    except TailraceError as error:
        return error
