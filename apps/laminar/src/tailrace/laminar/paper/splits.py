"""Compares the best split of the devices for Laminar with that of Table 2."""

from __future__ import annotations

from tailrace.fleetsim.reproduce import Found, Point, TargetMeasure
from tailrace.laminar.paper.points import SCALES, TRAINERS, point

NODE = 8
FARTHER = 4
"""Candidates are the paper's split, its neighbours by a node, and those some nodes or a quarter of the devices away. If a
farther one is the fastest, the best split is not within a node of the paper's."""


def measures(*, quick: bool) -> dict[str, TargetMeasure]:  # noqa: ARG001  searches are short in any case
    """The measure of Table 2's target."""
    searches = [_candidates(model, gpus) for model, scales in SCALES.items() for gpus in scales]
    return {
        "LAM-TABLE2": TargetMeasure(
            [each for search in searches for each in search.values()],
            lambda lab: [sum(_agrees(lab, search) for search in searches) / len(searches)],
        )
    }


def _candidates(model: str, gpus: int) -> dict[int, Point]:
    """Points by their distance in nodes from the paper's split."""
    paper = TRAINERS["laminar"][model][SCALES[model].index(gpus)]
    far = max(2, gpus // NODE // FARTHER)
    found = {}
    for away in (-far, -1, 0, 1, far):
        trainer = paper + away * NODE
        if 0 < trainer < gpus and trainer >= TRAINERS["laminar"][model][0]:
            found[away] = point("laminar", model, gpus, quick=True, trainer=trainer)
    return found


def _agrees(found: Found, search: dict[int, Point]) -> bool:
    best = max(search, key=lambda away: found[search[away]].result.tokens_per_s)
    return abs(best) <= 1
