"""What knowing the longest responses beforehand is worth: all lengths known, and as well as a ranker does (section 7.2)."""

from __future__ import annotations

import statistics
from collections.abc import Mapping

from tailrace.fleetsim.reproduce import Found, Measure, Point
from tailrace.streamrl.paper.points import MODELS, colocated

RECALL = 0.87
"""Of the longest 20 %, with a ranker of 7B (Table 4)."""

MOST = 0.7
"""Of an oracle's gain, what counts as most of it."""


def measures(*, quick: bool) -> dict[str, Measure]:
    """The measure of the ranker's worth."""
    random = {model: colocated(model, "20K", quick=quick) for model in MODELS}
    oracle = {model: colocated(model, "20K", quick=quick, routing="skew-aware") for model in MODELS}
    ranked = {model: with_recall(at, RECALL) for model, at in oracle.items()}
    every = [*random.values(), *oracle.values(), *ranked.values()]
    return {
        "SR-RANK-near": Measure(
            every, lambda lab: [all(share >= MOST for share in kept(lab, random, ranked, oracle).values())]
        )
    }


def with_recall(at: Point, recall: float) -> Point:
    """A point whose ranker finds this share of the longest 20 %."""
    return at.over(fleet__ranker__recall=recall)


def kept(
    found: Found, random: Mapping[str, Point], ranked: Mapping[str, Point], oracle: Mapping[str, Point]
) -> dict[str, float]:
    """The share of the oracle's gain in generation time over random dispatch that is left, by model."""
    seconds = [{model: rollout_s(found, at) for model, at in points.items()} for points in (random, ranked, oracle)]
    blind, some, all_ = seconds
    return {model: (blind[model] - some[model]) / (blind[model] - all_[model]) for model in random}


def rollout_s(found: Found, at: Point) -> float:
    """Mean seconds of generation of a batch."""
    return statistics.fmean(one.rollout_s for one in found[at].steps)
