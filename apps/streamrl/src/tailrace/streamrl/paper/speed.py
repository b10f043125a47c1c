"""Throughput of StreamRL, of its parts, and of what it is compared with (sections 7.1 and 7.2).

A batch has the same number of samples everywhere, so a ratio of throughputs is one of step times the other way round.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from tailrace.fleetsim.reproduce import Found, Point, TargetMeasure
from tailrace.streamrl.paper.points import (
    LENGTHS,
    MODELS,
    asynchronous,
    colocated,
    evenly_split,
    synchronous,
    value,
)

Cell = tuple[str, str]
CELLS: Sequence[Cell] = [(model, length) for model in MODELS for length in LENGTHS]
"""The nine points of Figure 8: a model and its longest responses."""

ABLATED = ("72B", "20K")
ALLOCATED = ("32B", "72B")


def measures(*, quick: bool) -> dict[str, TargetMeasure]:
    """The measures of the targets on throughput."""
    base = {cell: colocated(*cell, quick=quick) for cell in CELLS}
    sync = {cell: synchronous(*cell, quick=quick) for cell in CELLS}
    ours = {cell: asynchronous(*cell, quick=quick) for cell in CELLS}
    table = [
        base[ABLATED],
        colocated(*ABLATED, quick=quick, routing="skew-aware"),
        sync[ABLATED],
        ours[ABLATED],
    ]
    even = {model: evenly_split(model, "20K", quick=quick) for model in ALLOCATED}
    return {
        "SR-E2E-verl-sync": TargetMeasure(
            [*base.values(), *sync.values()], lambda lab: _ends(_over(lab, base, sync), value("verl.slower"))
        ),
        "SR-E2E-colo-sync": TargetMeasure([*base.values(), *sync.values()], lambda lab: _ends(_over(lab, base, sync))),
        "SR-E2E-async": TargetMeasure(
            [*base.values(), *ours.values()], lambda lab: _ends(_over(lab, base, ours), value("verl.slower"))
        ),
        "SR-ABL": TargetMeasure(table, lambda lab: [step_s(lab, table[0]) / step_s(lab, at) for at in table[1:]]),
        "SR-ALLOC": TargetMeasure(
            [*even.values(), *(ours[model, "20K"] for model in ALLOCATED)],
            lambda lab: [
                statistics.fmean(step_s(lab, even[model]) / step_s(lab, ours[model, "20K"]) for model in ALLOCATED)
            ],
        ),
    }


def step_s(found: Found, at: Point) -> float:
    """Mean seconds between two steps."""
    return found[at].result.step_s


def _over(found: Found, slower: Mapping[Cell, Point], faster: Mapping[Cell, Point]) -> list[float]:
    return [step_s(found, slower[cell]) / step_s(found, faster[cell]) for cell in CELLS]


def _ends(ratios: Sequence[float], slower: float = 1.0) -> list[float]:
    """The smallest and the largest.

    Args:
        slower: how many times as long an iteration of verl takes as one of the paper's own colocated system.
    """
    return [slower * min(ratios), slower * max(ratios)]
