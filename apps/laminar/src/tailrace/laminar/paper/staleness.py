"""Inherent staleness, and one version for each trajectory (sections 2.4 and 6)."""

from __future__ import annotations

from tailrace.fleetsim.reproduce import TargetMeasure
from tailrace.laminar.paper.points import every, point

MOST = 0.95


def measures(*, quick: bool) -> dict[str, TargetMeasure]:
    """The measures of the targets of sections 2.4, 6 and 8.1."""
    laminar = list(every("laminar", quick=quick).values())
    figure_10 = point("laminar", "7B", 64, quick=quick)
    moves = point("laminar", "32B", 128, quick=quick).over(probe="moves")
    return {
        "LAM-STALE-typ": TargetMeasure([figure_10], lambda lab: [_under(lab[figure_10].completed_staleness)]),
        "LAM-STALE-max": TargetMeasure(
            laminar, lambda lab: [max(max(lab[each].completed_staleness) for each in laminar)]
        ),
        "LAM-SINGLEVER": TargetMeasure(
            [moves], lambda lab: [lab[moves].versions_mixed == 0 and lab[moves].result.lost_trajectories == 0]
        ),
    }


def _under(staleness: dict[int, int]) -> float:
    """The least number such that the staleness of 95 % of trajectories is below it."""
    total, below = sum(staleness.values()), 0
    for lag, count in sorted(staleness.items()):
        below += count
        if below >= MOST * total:
            return lag + 1
    return 0
