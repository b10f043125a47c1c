"""Runs many simulations in parallel processes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from tailrace.contracts import TailraceError
from tailrace.fleetsim.log import MemoryLog
from tailrace.fleetsim.processes import in_processes
from tailrace.fleetsim.result import Result
from tailrace.fleetsim.run import simulate
from tailrace.pipeline.config.models import RunConfig

Job = tuple[RunConfig, int]
"""A configuration and a seed."""


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
