"""The stream trainer: when devices are lent, and what moving costs, Qwen2.5-7B on mathematics (section 6.6)."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

from tailrace.fleetsim.reproduce import Found, Point, TargetMeasure
from tailrace.rollpacker.paper.points import ROLLPACKER, point, scaled_down, single_fetch, without_scale_down
from tailrace.rollpacker.paper.rounds import rollout_s
from tailrace.rollpacker.paper.speed import step_s

ORDER = ("adaptive", "30 %", "40 %", "20 %", "none")
"""Table 3, the fastest first."""


def measures(*, quick: bool) -> dict[str, TargetMeasure]:
    """The measures of the targets of section 6.6."""
    adaptive = point(ROLLPACKER, "7B", quick=quick, kind="math")
    triggers = {f"{share:.0%}".replace("%", " %"): scaled_down(adaptive, share) for share in (0.2, 0.3, 0.4)}
    table = {"adaptive": adaptive, "none": without_scale_down(adaptive), **triggers}
    fetched = [single_fetch(adaptive, share) for share in (0.2, 0.3, 0.4, 0.5)]
    moving = adaptive.over(probe="moves")
    return {
        "RP-ST-T3": TargetMeasure(list(table.values()), lambda lab: [_ordered(lab, table)]),
        "RP-ST-T4": TargetMeasure(
            [adaptive, *fetched],
            lambda lab: [step_s(lab, at, "long") / step_s(lab, adaptive, "long") for at in fetched],
        ),
        "RP-ST-mig": TargetMeasure(
            [adaptive, table["none"], moving],
            lambda lab: [
                max(lab[moving].overheads_s),
                1 - rollout_s(lab[table["none"]].steps, "long") / rollout_s(lab[adaptive].steps, "long"),
            ],
        ),
    }


def _ordered(found: Found, table: Mapping[str, Point]) -> bool:
    seconds = [step_s(found, table[name], "long") for name in ORDER]
    return all(before < after for before, after in pairwise(seconds))
