"""Many simulations, side by side in processes of their own."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import replace

from tailrace.contracts import TailraceError
from tailrace.fleetsim.log import EventLog
from tailrace.fleetsim.result import Result
from tailrace.fleetsim.run import simulate
from tailrace.pipeline.config.models import RunConfig

Job = tuple[RunConfig, int]
"""A configuration and a seed."""


def simulate_many(jobs: Sequence[Job], *, processes: int | None = None) -> Iterator[tuple[int, Result | TailraceError]]:
    """Simulate all; each yields its place in `jobs` and its result, or why it could not be, in the order they are done.

    Results have no event log. The order in which they come depends on the machine; what they are does not.

    Args:
        processes: at once; as many as there are processor cores if None. With 1, this process does all.
    """
    count = min(processes or os.cpu_count() or 1, len(jobs))
    if count <= 1:
        for place, job in enumerate(jobs):
            yield place, _one(job)
        return
    context = multiprocessing.get_context("spawn")  # a fork would copy the threads of whoever calls
    with ProcessPoolExecutor(count, mp_context=context) as pool:
        futures: dict[Future[Result | TailraceError], int] = {
            pool.submit(_one, job): place for place, job in enumerate(jobs)
        }
        for future in as_completed(futures):
            yield futures[future], future.result()


def _one(job: Job) -> Result | TailraceError:
    config, seed = job
    try:
        return replace(simulate(config, seed=seed, keep_events=False), events=EventLog(()))
    except TailraceError as error:
        return error
