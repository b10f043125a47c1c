"""The measures of three sections: ranking by length, machines while responses grow, generation in another datacenter."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from statistics import NormalDist
from typing import Any

from tailrace.fleetsim.fleet.build import build_fleet
from tailrace.fleetsim.noisy_oracle import TABLE_4, expected_recalls, noise_of
from tailrace.fleetsim.reproduce import Found, Point, TargetMeasure, Toml
from tailrace.streamrl.paper.points import LENGTHS, LONGEST, MODELS, across, asynchronous, colocated, value
from tailrace.streamrl.paper.speed import step_s


def measures(*, quick: bool) -> dict[str, TargetMeasure]:
    """The measures of these sections' targets, by the target's id."""
    return ranking_measures(quick=quick) | adjustment_measures(quick=quick) | site_measures(quick=quick)


# What knowing the longest responses beforehand is worth: all lengths known, and as well as a ranker does (section 7.2).

SHARES = {0.2: "recall20", 0.1: "recall10", 0.05: "recall5"}
ALL = dict.fromkeys(SHARES, 1.0)
"""An oracle's recalls."""

MOST = 0.7
"""Share of an oracle's gain that counts as most of it."""


def ranking_measures(*, quick: bool) -> dict[str, TargetMeasure]:
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


# Machines that generation gets while responses grow: Qwen2.5-7B on 32 GPUs, from 10K to 20K (section 7.2, Figure 11).

ITERATIONS = 20
"""Iterations in which lengths double. The paper does not say; everything else of its evaluation is measured over so many."""

NODE = 8
MOST_NODES = 2 * NODE
NEVER = 0.0


def adjustment_measures(*, quick: bool) -> dict[str, TargetMeasure]:
    """The measure of the adjustment."""
    at = growing(quick=quick)
    return {"SR-DYN": TargetMeasure([at], lambda lab: _nodes(lab, at))}


def growing(*, quick: bool) -> Point:
    """StreamRL-Async whose responses grow, with two more machines for generation."""
    start = asynchronous("7B", "10K", quick=quick)
    chosen = dict(start.settings)
    devices = chosen["fleet.rollout.gpus"]
    assert isinstance(devices, int)
    return start.over(
        rollout__max_tokens=LONGEST,
        fleet__workload__response=_cut(LONGEST // 2),
        fleet__workload__drift=Toml(f"[[0, 1.0], [{ITERATIONS}, 2.0]]"),
        fleet__warm_up=0,
        pipeline__steps=ITERATIONS + 1,
        pipeline__provisioning__name="balanced",
        pipeline__provisioning__devices=devices + MOST_NODES,
        pipeline__provisioning__fewest=devices // MODELS["7B"].unit,
    )


def _cut(longest: int) -> Toml:
    """The lengths that are scaled so that the longest has so many tokens. Those that grow were cut there, not later."""
    score, scale = NormalDist(), longest / LONGEST
    median, sigma = scale * value("response.median"), value("response.sigma")
    cut = math.log(longest / median) / sigma
    points = [(-3.0, median * math.exp(-3.0 * sigma)), (cut, float(longest)), (cut + 1.0, float(longest))]
    return Toml(f"{{ quantiles = {[[score.cdf(at), tokens] for at, tokens in points]} }}")


def _nodes(found: Found, at: Point) -> Sequence[float]:
    """The iterations, from 1, after which a first and a second machine of eight devices is in use; 0 for never."""
    devices = [one.rollout_devices for one in found[at].steps]
    start = devices[0]
    return [
        next((float(step) for step, now in enumerate(devices) if now > start + already), NEVER) for already in (0, NODE)
    ]


# Generation in another datacenter, on other devices: throughput over cost, and what the link costs (section 7.3).

MACHINE_COST = {"H800": 2.85, "H20": 1.0}
"""Table 1, for a machine of eight."""

TRANSFER_S = 10.0
"""Seconds that a version of 72B takes at most over the link, by the paper."""


def site_measures(*, quick: bool) -> dict[str, TargetMeasure]:
    """The measures of the targets of section 7.3."""
    home = {length: asynchronous("7B", length, quick=quick) for length in LENGTHS}
    far = {length: across("7B", length, quick=quick) for length in LENGTHS}
    large = across("72B", "20K", quick=quick)
    return {
        "SR-COST": TargetMeasure([*home.values(), *far.values()], lambda lab: _ends(lab, home, far)),
        "SR-XDC": TargetMeasure((), lambda _: [_crosses_s(large)]),
        "SR-XDC-share": TargetMeasure([large], lambda lab: [TRANSFER_S / step_s(lab, large)]),
    }


def _ends(found: Found, home: Mapping[str, Point], far: Mapping[str, Point]) -> list[float]:
    gains = [_cost(found, home[length]) / _cost(found, far[length]) for length in home]
    return [min(gains), max(gains)]


def _cost(found: Found, at: Point) -> float:
    """Cost of an iteration, in hours of a machine with H20."""
    result = found[at].result
    return result.step_s * sum(count / 8 * MACHINE_COST[kind] for kind, count in result.devices.items())


def _crosses_s(at: Point) -> float:
    """Seconds that a version takes over the link alone."""
    near, far = (build_fleet(point.config()).pools[0].weights for point in (at.over(fleet__rollout__site=""), at))
    return far.broadcast_s - near.broadcast_s
