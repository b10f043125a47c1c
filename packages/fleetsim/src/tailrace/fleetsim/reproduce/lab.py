"""Simulates the points that measures need: each once, side by side in processes."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from dataclasses import dataclass

from tailrace.contracts import TailraceError
from tailrace.fleetsim.errors import ReproductionError
from tailrace.fleetsim.reproduce.points import Point
from tailrace.fleetsim.reproduce.probes import Measured, measure

Listener = Callable[["Progress"], None]


@dataclass(frozen=True, slots=True)
class Progress:
    """How far the simulations are.

    Args:
        wall_s: since the first began.
        trajectories: trained on in those that are done.
    """

    done: int
    points: int
    wall_s: float
    trajectories: int


class Lab(Mapping[Point, Measured]):
    """What was found at points. Looking up one that could not be simulated says why.

    Args:
        processes: simulations at once; as many as there are processor cores if None.
        listener: hears of every simulation that is done.
    """

    def __init__(self, *, processes: int | None = None, listener: Listener | None = None) -> None:
        self._processes, self._listener = processes or os.cpu_count() or 1, listener
        self._found: dict[Point, Measured | TailraceError] = {}

    def simulate(self, points: Iterable[Point]) -> None:
        """Simulate those that have not been."""
        wanted = [point for point in dict.fromkeys(points) if point not in self._found]
        begun, trajectories = time.monotonic(), 0
        for done, (point, found) in enumerate(self._each(wanted), start=1):
            self._found[point] = found
            if isinstance(found, Measured):
                trajectories += found.result.trajectories
            if self._listener is not None:
                self._listener(Progress(done, len(wanted), time.monotonic() - begun, trajectories))

    def _each(self, points: list[Point]) -> Iterable[tuple[Point, Measured | TailraceError]]:
        count = min(self._processes, len(points))
        if count <= 1:
            yield from ((point, _one(point)) for point in points)
            return
        context = multiprocessing.get_context("spawn")  # a fork would copy the threads of whoever calls
        with ProcessPoolExecutor(count, mp_context=context) as pool:
            futures = {pool.submit(_one, point): point for point in points}
            while futures:
                for future in wait(futures, return_when=FIRST_COMPLETED).done:
                    yield futures.pop(future), future.result()

    def __getitem__(self, point: Point) -> Measured:
        found = self._found[point]
        if isinstance(found, TailraceError):
            raise ReproductionError(f"{point}: {found}")
        if found.result.failure is not None:
            raise ReproductionError(f"{point}: the run failed: {found.result.failure}")
        return found

    def __iter__(self) -> Iterable[Point]:  # type: ignore[override]
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)


def _one(point: Point) -> Measured | TailraceError:
    try:
        return measure(point)
    except TailraceError as error:
        return error
