"""The measure of each number: throughput, ranking by length, machines while responses grow, another datacenter; and inputs.

A batch has the same number of samples everywhere, so a ratio of throughputs is one of step times the other way round.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from statistics import NormalDist
from typing import Any

from tailrace.fleetsim.fleet.build import build_fleet
from tailrace.fleetsim.fleet.stage_times import StageTimes
from tailrace.fleetsim.hardware import device, model
from tailrace.fleetsim.noisy_oracle import TABLE_4, expected_recalls, noise_of
from tailrace.fleetsim.reproduce import Found, OrderStatement, Paper, Point, TargetMeasure, Toml
from tailrace.repack import SkewAware, lpt
from tailrace.streamrl.paper.points import (
    LENGTHS,
    LONGEST,
    MODELS,
    PACKAGE,
    PARAMETERS,
    across,
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


def throughput_measures(*, quick: bool) -> dict[str, TargetMeasure]:
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
            [*base.values(), *sync.values()], lambda lab: _extremes(_over(lab, base, sync), value("verl.slower"))
        ),
        "SR-E2E-colo-sync": TargetMeasure(
            [*base.values(), *sync.values()], lambda lab: _extremes(_over(lab, base, sync))
        ),
        "SR-E2E-async": TargetMeasure(
            [*base.values(), *ours.values()], lambda lab: _extremes(_over(lab, base, ours), value("verl.slower"))
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


def _extremes(ratios: Sequence[float], slower: float = 1.0) -> list[float]:
    """The smallest and the largest.

    Args:
        slower: how many times as long an iteration of verl takes as one of the paper's own colocated system.
    """
    return [slower * min(ratios), slower * max(ratios)]


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
        "SR-COST": TargetMeasure([*home.values(), *far.values()], lambda lab: _cheaper(lab, home, far)),
        "SR-XDC": TargetMeasure((), lambda _: [_crosses_s(large)]),
        "SR-XDC-share": TargetMeasure([large], lambda lab: [TRANSFER_S / step_s(lab, large)]),
    }


def _cheaper(found: Found, home: Mapping[str, Point], far: Mapping[str, Point]) -> list[float]:
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


SLOTS = 10


def input_measures(*, quick: bool) -> dict[str, TargetMeasure]:
    """The measures of inputs and of identities."""
    return {
        "SR-GPU": TargetMeasure((), lambda _: [figure for kind in MACHINE_COST for figure in _device(kind)]),
        "SR-MODEL": TargetMeasure((), lambda _: [figure for at in MODELS.values() for figure in _model(at.shape)]),
        "SR-ALPHA": TargetMeasure((), lambda _: [SkewAware(1e-6, 1e-2, 1e-4, 1e-3).alpha]),
        "SR-LPT": TargetMeasure((), lambda _: [_worst()]),
        "SR-PLATEAU": TargetMeasure((), lambda _: [_plateaus(quick=quick)]),
    }


def _device(name: str) -> list[float]:
    at = device(name)
    return [
        at.peak_flops / 1e12,
        at.memory_bytes / 1e9,
        at.hbm_bandwidth / 1e12,
        at.nvlink_bandwidth / 1e9,
        MACHINE_COST[name],
    ]


def _model(name: str) -> list[float]:
    at = model(name)
    return [float(count) for count in (at.layers, at.query_heads, at.kv_heads, at.hidden)]


def _worst() -> float:
    """The makespan over the best possible, of Graham's worst case for so many slots."""
    lengths = [length for length in range(2 * SLOTS - 1, SLOTS, -1) for _ in range(2)] + [SLOTS] * 3
    return lpt(lengths, SLOTS).makespan / (3 * SLOTS)


def _plateaus(*, quick: bool) -> bool:
    """Whether eight times the devices make training of 7B faster by more than generation, with 8,192 tokens each (Figure 2)."""
    fixed = asynchronous("7B", "10K", quick=quick).over(
        fleet__workload__response=Toml("{ tokens = 8192 }"),
    )
    times = StageTimes(fixed.config())
    generation, training = (stage(8) / stage(64) for stage in (lambda n: times.generation(n).seconds, times.train_s))
    return training > generation


def measures(*, quick: bool) -> dict[str, TargetMeasure]:
    """The measures of all targets that are simulated, by the target's id."""
    found = input_measures(quick=quick) | throughput_measures(quick=quick)
    return found | ranking_measures(quick=quick) | adjustment_measures(quick=quick) | site_measures(quick=quick)


def orders(*, quick: bool) -> dict[str, OrderStatement]:  # noqa: ARG001  its statements are targets
    """No statements beside the targets."""
    return {}


PAPER = Paper("streamrl", PACKAGE, PARAMETERS, measures, orders)
