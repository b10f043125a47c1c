"""The one call: a configuration in, a result out; and many of them, or other jobs, in parallel processes."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import replace
from itertools import islice
from multiprocessing import active_children, get_context
from pathlib import Path
from typing import Any, TypeVar

from tailrace.contracts import TailraceError
from tailrace.fleetsim.fleet.build import build_fleet
from tailrace.fleetsim.host.simulator import Simulation
from tailrace.fleetsim.results.log import MemoryLog
from tailrace.fleetsim.results.result import Result, result_of
from tailrace.pipeline.config.loading import parse_setting, validate
from tailrace.pipeline.config.models import RunConfig
from tailrace.pipeline.config.target import configuration
from tailrace.processes import die_with_parent
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


Work = TypeVar("Work")
Done = TypeVar("Done")
AHEAD = 8  # jobs that each process has before it, so that a million of them need no memory


def in_processes(
    work: Callable[[Work], Done], jobs: Sequence[Work], *, processes: int | None = None
) -> Iterator[tuple[int, Done]]:
    """Yield each job's index in `jobs` and its result, as the jobs end.

    That order depends on the machine; what comes of a job does not. The processes end with this one, however it ends, and at
    once when no more results are asked for.

    Args:
        work: a function that processes can be handed (at the top of a module).
        processes: number of processes at once; None: one per processor core. With 1, this process does all.
    """
    count = min(processes or os.cpu_count() or 1, len(jobs))
    numbered = enumerate(jobs)
    if count <= 1:
        yield from ((place, work(job)) for place, job in numbered)
        return
    # Not forked: a copy of a process with threads, of torch or of UCX, may not live long.
    others = set(active_children())
    pool = ProcessPoolExecutor(count, get_context("spawn"), initializer=_begin, initargs=(os.getpid(),))
    try:
        running: dict[Future[Done], int] = {}
        while True:
            for place, job in islice(numbered, AHEAD * count - len(running)):
                running[pool.submit(work, job)] = place
            if not running:
                return
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                yield running.pop(future), future.result()
    finally:
        if running:  # nobody waits for what is left
            pool.shutdown(wait=False, cancel_futures=True)
            for child in set(active_children()) - others:
                child.kill()
        pool.shutdown()


def _begin(parent: int) -> None:
    """Begin a process of a pool. Ctrl-C at a terminal goes to all; the parent alone decides what it means."""
    die_with_parent(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
