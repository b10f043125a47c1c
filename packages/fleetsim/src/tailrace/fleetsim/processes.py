"""Runs jobs in parallel processes: simulations, points of an evaluation, seeds of fuzzing."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from itertools import islice
from multiprocessing import active_children, get_context
from typing import TypeVar

from tailrace.processes import die_with_parent

Job = TypeVar("Job")
Done = TypeVar("Done")
AHEAD = 8  # jobs that each process has before it, so that a million of them need no memory


def in_processes(
    work: Callable[[Job], Done], jobs: Sequence[Job], *, processes: int | None = None
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
