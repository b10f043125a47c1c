"""Many seeds: each is drawn, run and checked; what was covered is counted."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from tailrace.fleetsim.run import in_processes
from tailrace.fuzz.draw import draw_case
from tailrace.fuzz.policies import NONE, Policies
from tailrace.fuzz.trial import Violation, run_case

TWICE_EVERY = 16
"""One seed in so many runs twice, and both event logs must be the same."""


@dataclass(frozen=True, slots=True)
class SeedResult:
    """What one seed showed; small, since it travels between processes.

    Args:
        ended: "finished", "gave up" with a reason that holds, or empty where something broke.
    """

    seed: int
    failure: Violation | None
    ended: str
    instants: int
    simulated_s: float
    covered: dict[str, Counter[str]]


@dataclass(slots=True)
class CampaignSummary:
    """What all seeds showed."""

    seeds: int = 0
    failures: dict[int, Violation] = field(default_factory=dict)
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

    def kinds(self) -> list[list[int]]:
        """Seeds that broke, together where what broke has probably one cause."""
        kinds: dict[str, list[int]] = {}
        for seed in sorted(self.failures):
            kinds.setdefault(self.failures[seed].kind, []).append(seed)
        return list(kinds.values())


def run_seed(seed: int, policies: Policies = NONE) -> SeedResult:
    """Draw the case of a seed, run it and check it."""
    trial = run_case(draw_case(seed, policies), policies, twice=seed % TWICE_EVERY == 0)
    return SeedResult(seed, trial.failure, trial.ended, trial.instants, trial.duration_s, trial.covered)


def run_seeds(
    seeds: Sequence[int],
    policies: Policies = NONE,
    *,
    processes: int = 1,
    progress: Callable[[CampaignSummary], None] | None = None,
) -> CampaignSummary:
    """Run seeds.

    Args:
        policies: those of yours that are in every case, by axis.
        processes: at once, each on a core of its own.
        progress: called after each seed.
    """
    summary, began = CampaignSummary(), time.monotonic()
    for _, result in in_processes(partial(run_seed, policies=dict(policies)), seeds, processes=processes):
        summary.add(result)
        summary.wall_s = time.monotonic() - began
        if progress is not None:
            progress(summary)
    return summary
