"""Many seeds: each is drawn, run and checked; what was covered is counted."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context

from tailrace.fleetsim.fuzz.draw import draw_case
from tailrace.fleetsim.fuzz.trial import Failure, run_case

TWICE_EVERY = 16
"""One seed in so many runs twice, and both event logs must be the same."""

_CHUNK = 8


@dataclass(frozen=True, slots=True)
class SeedResult:
    """What one seed showed; small, since it travels between processes.

    Args:
        ended: "finished", "gave up" with a reason that holds, or empty where something broke.
    """

    seed: int
    failure: Failure | None
    ended: str
    instants: int
    simulated_s: float
    covered: dict[str, Counter[str]]


@dataclass(slots=True)
class Summary:
    """What all seeds showed."""

    seeds: int = 0
    failures: dict[int, Failure] = field(default_factory=dict)
    ended: Counter[str] = field(default_factory=Counter)
    instants: int = 0
    simulated_s: float = 0.0
    wall_s: float = 0.0
    covered: dict[str, Counter[str]] = field(default_factory=dict)

    def add(self, result: SeedResult) -> None:
        """One more seed is through."""
        self.seeds += 1
        self.instants += result.instants
        self.simulated_s += result.simulated_s
        if result.failure is not None:
            self.failures[result.seed] = result.failure
        else:
            self.ended[result.ended] += 1
        for kind, counts in result.covered.items():
            self.covered.setdefault(kind, Counter()).update(counts)

    @property
    def seeds_per_s(self) -> float:
        """Seeds per second."""
        return self.seeds / self.wall_s if self.wall_s else 0.0


def run_seed(seed: int) -> SeedResult:
    """Draw the case of a seed, run it and check it."""
    trial = run_case(draw_case(seed), twice=seed % TWICE_EVERY == 0)
    return SeedResult(seed, trial.failure, trial.ended, trial.instants, trial.duration_s, trial.covered)


def fuzz(seeds: Iterable[int], *, processes: int = 1, progress: Callable[[Summary], None] | None = None) -> Summary:
    """Run seeds.

    Args:
        processes: at once, each on a core of its own.
        progress: called after each seed.
    """
    summary, began = Summary(), time.monotonic()
    for result in _results(seeds, processes):
        summary.add(result)
        summary.wall_s = time.monotonic() - began
        if progress is not None:
            progress(summary)
    return summary


def _results(seeds: Iterable[int], processes: int) -> Iterator[SeedResult]:
    if processes == 1:
        yield from map(run_seed, seeds)
        return
    # Not forked: a copy of a process with threads, of torch or of UCX, may not live long.
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        yield from pool.map(run_seed, seeds, chunksize=_CHUNK)
