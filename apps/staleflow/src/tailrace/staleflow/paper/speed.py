"""Throughput at the points of Figures 13, 15 and 16: ratios, orders, the ablation, redundancy."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from itertools import pairwise

from tailrace.fleetsim.reproduce import Found, OrderStatement, Point, TargetMeasure
from tailrace.staleflow.paper.points import (
    ASYNC,
    BOUNDS,
    MODELS,
    ONE_STEP,
    SYNCHRONOUS,
    detailed,
    point,
)

NAMES = {SYNCHRONOUS: "VeRL", ONE_STEP: "VeRL-Pipeline", ASYNC: "VeRL-Async"}
LIKE = 0.05
ABOUT = 0.98
"""Tolerance of "not less": the throughput of simulations differs by this much between seeds."""


def measures(*, quick: bool) -> dict[str, TargetMeasure]:
    """The measures of the targets of sections 6.2, 6.4, 6.5 and Appendix C."""
    found = {}
    for name, system in (("verl", SYNCHRONOUS), ("pipeline", ONE_STEP), ("async", ASYNC)):
        found[f"SF-E2E-{name}"] = TargetMeasure(_needed("staleflow", system, quick=quick), _ratios(system, quick))
    found["SF-E2E-mono"] = TargetMeasure(
        _needed("staleflow", ASYNC, quick=quick), lambda lab: [_monotone(lab, quick=quick)]
    )
    ablation = {name: _ablated(name) for name in ("", "R", "S", "M", "RSM")}
    async_ = detailed(ASYNC)
    found["SF-ABL-order"] = TargetMeasure([*ablation.values(), async_], lambda lab: [_ablation(lab, ablation, async_)])
    redundant = [_redundant(groups=groups, samples=samples) for groups, samples in ((0, 0), (8, 0), (0, 1))]
    found["SF-RED-effect"] = TargetMeasure(redundant, lambda lab: [_redundancy(lab, redundant)])
    series = _series(quick=quick)
    found["SF-SCAL"] = TargetMeasure(
        [each for pairs in series.values() for pair in pairs for each in pair], lambda lab: [_scales(lab, series)]
    )
    return found


def orders(*, quick: bool) -> dict[str, OrderStatement]:
    """The checks of section 6.2's statements on orders."""
    needed = _needed("staleflow", *NAMES, quick=quick)
    return {
        "fastest": OrderStatement(needed, lambda lab: _fastest(lab, quick=quick)),
        "averages": OrderStatement(needed, lambda lab: _averages(lab, quick=quick)),
    }


def _needed(*systems: str, quick: bool) -> list[Point]:
    found = dict.fromkeys(
        _at(system, model, bound, quick) for system in systems for model in MODELS for bound in BOUNDS
    )
    return list(found)


def _at(system: str, model: str, bound: int, quick: bool) -> Point:
    return point(system, model, bound if system in ("staleflow", ASYNC) else 1, quick=quick)


def _over(found: Found, system: str, *, quick: bool) -> dict[tuple[str, int], float]:
    """StaleFlow's throughput over a system's."""
    return {
        (model, bound): _speed(found, _at("staleflow", model, bound, quick))
        / _speed(found, _at(system, model, bound, quick))
        for model in MODELS
        for bound in BOUNDS
    }


def _speed(found: Found, at: Point) -> float:
    return found[at].result.tokens_per_s


def _ratios(system: str, quick: bool) -> Callable[[Found], list[float]]:
    return lambda found: _max_and_mean(list(_over(found, system, quick=quick).values()))


def _max_and_mean(values: Sequence[float]) -> list[float]:
    return [max(values), statistics.fmean(values)]


def _monotone(found: Found, *, quick: bool) -> bool:
    over = _over(found, ASYNC, quick=quick)
    means = [statistics.fmean(over[model, bound] for model in MODELS) for bound in BOUNDS]
    return all(after > before for before, after in pairwise(means))


def _fastest(found: Found, *, quick: bool) -> list[tuple[str, bool]]:
    return [
        (f"{model}, bound {bound}: {ratio:.2f} times {name}", ratio > 1)
        for system, name in NAMES.items()
        for (model, bound), ratio in _over(found, system, quick=quick).items()
    ]


def _averages(found: Found, *, quick: bool) -> list[tuple[str, bool]]:
    means = {system: statistics.fmean(_over(found, system, quick=quick).values()) for system in NAMES}
    return [
        (
            f"{NAMES[faster]} ({means[faster]:.2f}) before {NAMES[slower]} ({means[slower]:.2f})",
            means[faster] < means[slower],
        )
        for slower, faster in pairwise((SYNCHRONOUS, ONE_STEP, ASYNC))
    ]


def _ablated(kept: str) -> Point:
    """StaleFlow with only some of its three strategies (configs/staleflow/vanilla*.toml)."""
    vanilla = {"R": ("routing", "least-loaded"), "S": ("sync", "interrupting"), "M": ("relocation", "none")}
    settings = {f"pipeline__{axis}": name for letter, (axis, name) in vanilla.items() if letter not in kept}
    return detailed().over(**settings)


def _ablation(found: Found, ablation: dict[str, Point], async_: Point) -> bool:
    speeds = {name: _speed(found, at) for name, at in ablation.items()}
    alike = abs(speeds[""] / _speed(found, async_) - 1) <= LIKE
    return alike and all(speeds[one] > speeds[""] for one in "RSM") and speeds["RSM"] == max(speeds.values())


def _redundant(*, groups: int, samples: int) -> Point:
    if not groups and not samples:
        return detailed()
    return detailed().over(
        pipeline__batching__name="redundant",
        pipeline__batching__surplus_groups=groups,
        pipeline__batching__surplus_samples=samples,
        pipeline__batching__filter_equal_rewards=False,
    )


def _redundancy(found: Found, redundant: Sequence[Point]) -> bool:
    none, groups, samples = (found[each] for each in redundant)
    shorter = groups.mean_tokens < samples.mean_tokens < none.mean_tokens
    sooner = max(groups.result.step_s, samples.result.step_s) < none.result.step_s
    faster = min(groups.result.tokens_per_s, samples.result.tokens_per_s) > none.result.tokens_per_s
    return shorter and sooner and faster


def _series(*, quick: bool) -> dict[str, list[tuple[Point, Point]]]:
    """Pairs of StaleFlow and VeRL as one factor grows (Figure 15): response limit, batch size, devices."""
    model, bound = "base-30b-a3b", 3

    def pair(**varied: int) -> tuple[Point, Point]:
        first, second = (
            point(system, model, bound if system == "staleflow" else 1, quick=quick, **varied)
            for system in ("staleflow", SYNCHRONOUS)
        )
        return first, second

    return {
        "length": [pair(cap=cap) for cap in (10_240, 20_480, 40_960)],
        "batch": [pair(groups=groups) for groups in (64, 128, 256)],
        "gpus": [pair(gpus=gpus) for gpus in (64, 128)],
    }


def _scales(found: Found, series: dict[str, list[tuple[Point, Point]]]) -> bool:
    ratios = {
        name: [_speed(found, ours) / _speed(found, verl) for ours, verl in pairs] for name, pairs in series.items()
    }
    grows = all(after > before for name in ("length", "batch") for before, after in pairwise(ratios[name]))
    return grows and ratios["gpus"][-1] >= ABOUT * ratios["gpus"][0]
