"""What knowing the longest responses beforehand is worth: all lengths known, and as well as a ranker does (section 7.2)."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

from tailrace.fleetsim.noisy_oracle import TABLE_4, expected_recalls, noise_of
from tailrace.fleetsim.reproduce import Found, Point, TargetMeasure
from tailrace.streamrl.paper.points import MODELS, colocated

SHARES = {0.2: "recall20", 0.1: "recall10", 0.05: "recall5"}
ALL = dict.fromkeys(SHARES, 1.0)
"""An oracle's recalls."""

MOST = 0.7
"""Share of an oracle's gain that counts as most of it."""


def measures(*, quick: bool) -> dict[str, TargetMeasure]:
    """The measures of the ranker's recall, and of its worth."""
    random = {model: colocated(model, "20K", quick=quick) for model in MODELS}
    ranked = {model: colocated(model, "20K", quick=quick, routing="skew-aware") for model in MODELS}
    oracle = {model: with_recalls(at, ALL) for model, at in ranked.items()}
    every = [*random.values(), *oracle.values(), *ranked.values()]
    return {
        "SR-RANK": TargetMeasure((), lambda _: [recall for ranker in TABLE_4.values() for recall in _recalls(ranker)]),
        "SR-RANK-near": TargetMeasure(
            every, lambda lab: [all(share >= MOST for share in kept(lab, random, ranked, oracle).values())]
        ),
    }


def with_recalls(at: Point, recalls: Mapping[float, float]) -> Point:
    """A point whose ranker finds these parts of the longest, by share of the tail."""
    settings: dict[str, Any] = {f"fleet__ranker__{SHARES[share]}": recall for share, recall in recalls.items()}
    return at.over(**settings)


def kept(
    found: Found, random: Mapping[str, Point], ranked: Mapping[str, Point], oracle: Mapping[str, Point]
) -> dict[str, float]:
    """The share of the oracle's gain in generation time over random dispatch that is left, by model."""
    return {
        model: (rollout_s(found, random[model]) - rollout_s(found, ranked[model]))
        / (rollout_s(found, random[model]) - rollout_s(found, oracle[model]))
        for model in random
    }


def rollout_s(found: Found, at: Point) -> float:
    """Mean seconds of generation of a batch."""
    return statistics.fmean(one.rollout_s for one in found[at].steps)


def _recalls(ranker: Mapping[float, float]) -> list[float]:
    expected = expected_recalls(noise_of(ranker), tuple(ranker))
    return [expected[share] for share in SHARES]
