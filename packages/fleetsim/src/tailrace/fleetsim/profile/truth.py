"""Whether a simulation is true: the same figures of a simulated and of a real run, and how far they are apart.

Both sides are measured alike: from the same batch on, by the same definitions. Start-up, the first batches and what follows
the last batch (evaluation, controls) are left out.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from tailrace import contracts as c
from tailrace.fleetsim.errors import ProfileError
from tailrace.fleetsim.result import Result
from tailrace.pipeline.run.directory import RunDirectory, read_json
from tailrace.pipeline.run.eventlog import read_events


@dataclass(frozen=True, slots=True)
class Figures:
    """What is compared.

    Args:
        tokens_per_s: trained on, prompts included, over the time between the first and the last batch that count.
        step_s: mean time between two of them.
        staleness: mean over their trajectories, by the versions that generated them.
        repacks: replicas emptied by relocation, over the whole run.
    """

    tokens_per_s: float
    step_s: float
    staleness: float
    repacks: float


@dataclass(frozen=True, slots=True)
class Verdict:
    """One figure on both sides.

    Args:
        error: by the figure's own measure: a share of the real value, a difference, or a factor.
        limit: what is allowed.
    """

    figure: str
    simulated: float
    real: float
    error: float
    limit: float

    @property
    def holds(self) -> bool:
        """Whether the error is within the limit."""
        return self.error <= self.limit


THROUGHPUT_LIMIT, STALENESS_LIMIT, REPACK_LIMIT = 0.15, 0.5, 2.0


def real_figures(directory: RunDirectory, warm_up: int) -> Figures:
    """Of a run that has ended.

    Args:
        warm_up: batches that do not count.

    Raises:
        ProfileError: it made no batch after the warm-up.
    """
    stepped = {event.version: now for now, event in read_events(directory.events) if isinstance(event, c.Stepped)}
    counted = sorted(stepped)[warm_up:]
    if not counted or not warm_up:
        raise ProfileError(
            f"{directory.root}: found {len(stepped)} batches, expected more than the {max(1, warm_up)} of the warm-up"
        )
    tokens, lags = 0, []
    with directory.trained.open(encoding="utf-8") as file:
        for line in file:
            row = json.loads(line)
            if row["consumed_version"] in stepped and row["consumed_version"] >= counted[0]:
                tokens += len(row["prompt"]) + len(row["tokens"])
                lags.append(row["consumed_version"] - 1 - row["oldest_version"])
    window_s = stepped[counted[-1]] - stepped[sorted(stepped)[warm_up - 1]]
    return Figures(
        tokens_per_s=tokens / window_s,
        step_s=window_s / len(counted),
        staleness=fmean(lags),
        repacks=float(read_json(directory.summary)["repacks"]),
    )


def simulated_figures(results: Sequence[Result]) -> Figures:
    """Means over simulations with different seeds."""
    return Figures(
        tokens_per_s=fmean(result.tokens_per_s for result in results),
        step_s=fmean(result.step_s for result in results),
        staleness=fmean(result.staleness_mean for result in results),
        repacks=fmean(result.moves for result in results),
    )


def mean_of(figures: Sequence[Figures]) -> Figures:
    """Means over runs."""
    return Figures(
        tokens_per_s=fmean(each.tokens_per_s for each in figures),
        step_s=fmean(each.step_s for each in figures),
        staleness=fmean(each.staleness for each in figures),
        repacks=fmean(each.repacks for each in figures),
    )


def compare(simulated: Figures, real: Figures) -> list[Verdict]:
    """Throughput within 15 %, staleness within 0.5, repacks within a factor of two (0 and fewer than 1 count as equal)."""
    return [
        Verdict(
            "trained tokens/s",
            simulated.tokens_per_s,
            real.tokens_per_s,
            abs(simulated.tokens_per_s - real.tokens_per_s) / real.tokens_per_s,
            THROUGHPUT_LIMIT,
        ),
        Verdict(
            "mean staleness",
            simulated.staleness,
            real.staleness,
            abs(simulated.staleness - real.staleness),
            STALENESS_LIMIT,
        ),
        Verdict("repacks", simulated.repacks, real.repacks, _factor(simulated.repacks, real.repacks), REPACK_LIMIT),
    ]


def _factor(one: float, other: float) -> float:
    less, more = sorted((max(1.0, one), max(1.0, other)))
    return more / less
