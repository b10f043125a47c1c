"""Simulates the points that measures need: each once, side by side in processes."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from tailrace.contracts import TailraceError
from tailrace.fleetsim.errors import ReproductionError
from tailrace.fleetsim.processes import in_processes
from tailrace.fleetsim.reproduce.points import Point
from tailrace.fleetsim.reproduce.probes import ProbeFindings, measure

Listener = Callable[["LabProgress"], None]


@dataclass(frozen=True, slots=True)
class LabProgress:
    """How far the simulations are.

    Args:
        wall_s: since the first began.
        trajectories: trained on in those that are done.
    """

    done: int
    points: int
    wall_s: float
    trajectories: int


class Lab(Mapping[Point, ProbeFindings]):
    """What was found at points. Looking up one that could not be simulated says why.

    Args:
        processes: simulations at once; as many as there are processor cores if None.
        listener: hears of every simulation that is done.
    """

    def __init__(self, *, processes: int | None = None, listener: Listener | None = None) -> None:
        self._processes, self._listener = processes, listener
        self._found: dict[Point, ProbeFindings | TailraceError] = {}

    def simulate(self, points: Iterable[Point]) -> None:
        """Simulate those that have not been."""
        wanted = [point for point in dict.fromkeys(points) if point not in self._found]
        begun, trajectories = time.monotonic(), 0
        for done, (place, found) in enumerate(in_processes(_one, wanted, processes=self._processes), start=1):
            self._found[wanted[place]] = found
            if isinstance(found, ProbeFindings):
                trajectories += found.result.trajectories
            if self._listener is not None:
                self._listener(LabProgress(done, len(wanted), time.monotonic() - begun, trajectories))

    def __getitem__(self, point: Point) -> ProbeFindings:
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


def _one(point: Point) -> ProbeFindings | TailraceError:
    try:
        return measure(point)
    except TailraceError as error:
        return error
    except Exception as error:  # a fault of ours: its targets count as missed and say why, and the others are measured
        where = traceback.extract_tb(error.__traceback__)[-1]
        return ReproductionError(f"broke with {type(error).__name__}: {error} ({where.filename}:{where.lineno})")
