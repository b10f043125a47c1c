"""Many seeds: each is drawn, run and checked, what was covered is counted, and what broke is made small."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from tailrace.fleetsim.run import in_processes
from tailrace.fuzz.case import Case
from tailrace.fuzz.draw import draw_case
from tailrace.fuzz.policies import NONE, Policies, check_axes
from tailrace.fuzz.shrink import Shrinker
from tailrace.fuzz.trial import Trial, Violation, run_case

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


@dataclass(frozen=True, slots=True)
class BrokenCase:
    """Something that broke.

    Args:
        seeds: all that broke in this way; the first was looked at.
        failure: how that one broke.
        case: the smallest that breaks in the same way, and how: the seed's own if nothing was shrunk.
        trials: cases that were tried on the way.
        path: where that case is written; None where nothing was shrunk.
    """

    seeds: list[int]
    failure: Violation
    drawn: Case
    case: Case
    smallest: Violation
    trials: int
    path: Path | None

    def __str__(self) -> str:
        others = f", and {len(self.seeds) - 1} more seeds: {', '.join(map(str, self.seeds[1:12]))}"
        lines = [f"seed {self.seeds[0]} broke{others if len(self.seeds) > 1 else ''}", str(self.failure)]
        lines += [self.failure.where] if self.failure.where else []
        if self.path is not None:
            lines += [
                f"shrunk in {self.trials} trials, from {self.drawn.size} to {self.case.size}:",
                *(f"  {fault.model_dump_json(exclude_defaults=True)}" for fault in self.case.faults),
                str(self.smallest),
            ]
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Findings:
    """What fuzzing showed.

    Args:
        summary: of all seeds.
        found: one for each kind of failure.
        policies: those of yours that took part, by axis.
    """

    summary: CampaignSummary
    found: list[BrokenCase]
    policies: Policies

    def __str__(self) -> str:
        summary, mine = self.summary, "".join(f", {axis}=..." for axis in self.policies)
        lines = [f"{summary.seeds} seeds: {summary.seeds - len(summary.failures)} held, {len(summary.failures)} broke"]
        for one in self.found:
            lines += [str(one), f"replay it:  tailrace.fuzz.fuzz([{one.seeds[0]}]{mine})"]
            if one.path is not None:
                lines.append(f"the shrunk:  tailrace.fuzz.replay({str(one.path)!r}{mine})")
        return "\n".join(lines)


def fuzz(
    seeds: int | Sequence[int] = 200,
    *,
    processes: int = 1,
    shrink_s: float = 20.0,
    out: Path | str = ".",
    progress: Callable[[CampaignSummary], None] | None = None,
    **policies: Any,
) -> Findings:
    """Random pipelines, fleets and faults in virtual time, with the invariants checked at every event.

    Args:
        seeds: how many, or which. The same seed is the same case.
        processes: at once.
        shrink_s: seconds to spend on making each kind of failure smaller; 0 for none.
        out: the folder where shrunk cases are written, as `fuzz-SEED.json`.
        progress: called after each seed.
        policies: those of yours that are in every case, by axis: ``routing=Mine()``, ``routing=Mine`` to have its options drawn
            too, or ``routing="mine"`` for a plugin. The other axes are drawn among all that is installed.

    Raises:
        CaseError: there is no such axis, or a policy takes none of its options.
    """
    check_axes(policies)
    numbers = range(seeds) if isinstance(seeds, int) else seeds
    summary = run_seeds(numbers, policies, processes=processes, progress=progress)
    found = [_finding(kind, summary.failures[kind[0]], policies, shrink_s, Path(out)) for kind in summary.kinds()]
    return Findings(summary, found, policies)


def replay(path: Path | str, **policies: Any) -> Trial:
    """Run the case in a file, twice.

    Args:
        policies: those of yours that it was found with, by axis.

    Raises:
        CaseError: the file is no case, or names a policy that is not here.
    """
    check_axes(policies)
    return run_case(Case.read(Path(path)), policies, twice=True)


def _finding(seeds: list[int], failure: Violation, policies: Policies, shrink_s: float, out: Path) -> BrokenCase:
    drawn = draw_case(seeds[0], policies)
    if not shrink_s:
        return BrokenCase(seeds, failure, drawn, drawn, failure, 0, None)
    shrinker = Shrinker(drawn, failure, limit_s=shrink_s, policies=policies)
    small, path = shrinker.shrink(), out / f"fuzz-{seeds[0]}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(small.to_json())
    return BrokenCase(seeds, failure, drawn, small, shrinker.failure, shrinker.tried, path)
