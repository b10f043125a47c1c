"""Machines that generation gets while responses grow: Qwen2.5-7B on 32 GPUs, from 10K to 20K (section 7.2, Figure 11)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist

from tailrace.fleetsim.reproduce import Found, Point, TargetMeasure, Toml
from tailrace.streamrl.paper.points import LONGEST, MODELS, asynchronous, value

ITERATIONS = 20
"""Iterations in which lengths double. The paper does not say; everything else of its evaluation is measured over so many."""

NODE = 8
MOST = 2 * NODE
NEVER = 0.0


def measures(*, quick: bool) -> dict[str, TargetMeasure]:
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
        pipeline__provisioning__devices=devices + MOST,
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
