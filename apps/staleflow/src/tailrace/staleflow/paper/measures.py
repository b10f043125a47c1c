"""The measure of each number: throughput at the points of Figures 13, 15 and 16, and one setting in detail.

The throughput is of ratios, orders, the ablation and redundancy. The setting is Qwen3-30B-A3B on 128 H20, limit 40K, bound 3
(section 6.5, Appendices A to C).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from itertools import pairwise

from tailrace.fleetsim.cost import DecodeCost, fit_coefficients, throughput_error
from tailrace.fleetsim.fleet.build import build_fleet
from tailrace.fleetsim.fleet.quantities import samples
from tailrace.fleetsim.hardware import device, model
from tailrace.fleetsim.reproduce import Found, OrderStatement, Paper, Point, ProbeFindings, TargetMeasure
from tailrace.pipeline.run.build import build_spec
from tailrace.staleflow.paper.points import (
    ASYNC,
    BOUNDS,
    MODELS,
    ONE_STEP,
    PACKAGE,
    PARAMETERS,
    SYNCHRONOUS,
    detailed,
    point,
)

NAMES = {SYNCHRONOUS: "VeRL", ONE_STEP: "VeRL-Pipeline", ASYNC: "VeRL-Async"}
LIKE = 0.05
ABOUT = 0.98
"""Tolerance of "not less": the throughput of simulations differs by this much between seeds."""


def throughput_measures(*, quick: bool) -> dict[str, TargetMeasure]:
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


FLAT = 1.10
SCALES = (16, 32, 64, 128)
LONGEST = 40_960


def detail_measures(*, quick: bool) -> dict[str, TargetMeasure]:  # noqa: ARG001  a bound needs all its batches
    """The measures of the targets of section 6.5 and the appendices."""
    here = detailed()
    paper_cost = here.over(
        fleet__fit_cost=False,
        pipeline__steps=2,
        fleet__warm_up=0,
        rollout__cost_model__k1=7.28e-8,  # Table 4
        rollout__cost_model__k2=1.72e-3,
        rollout__cost_model__k3=1.25e-4,
        rollout__cost_model__k4=1.07e-2,
    )
    return {
        "SF-TIME": TargetMeasure([here], lambda lab: [*_parts(lab[here], here), lab[here].result.step_s]),
        "SF-TIME-share": TargetMeasure(
            [here], lambda lab: [part / lab[here].result.step_s for part in _parts(lab[here], here)]
        ),
        "SF-OVH": TargetMeasure([here], lambda lab: [sum(_parts(lab[here], here)[:3]) / lab[here].result.step_s]),
        "SF-PULL-steps": TargetMeasure([here], lambda lab: [lab[here].pull_s]),
        "SF-STALE": TargetMeasure([here], lambda lab: [lab[here].result.staleness_max]),
        "SF-STALE-fill": TargetMeasure([here], lambda lab: [_filled(lab, here)]),
        "SF-INFLIGHT": TargetMeasure(
            [here], lambda lab: [lab[here].open_groups <= (_bound(here) + 1) * lab[here].groups]
        ),
        "SF-INIT": TargetMeasure([paper_cost], lambda lab: [lab[paper_cost].first_routed]),
        "SF-COST-err": TargetMeasure([here], lambda lab: [_cost_error(lab[here].states)]),
        "SF-COST-knee": TargetMeasure((), lambda _: [device("H20").ridge_batch]),
        "SF-RED-count": TargetMeasure((), lambda _: _launched(here)),
        "SF-PS-flat": TargetMeasure((), lambda _: [_flat(here)]),
    }


def _parts(measured: ProbeFindings, at: Point) -> list[float]:
    """Seconds of a replica for each batch: pull, route, interrupt, prefill, decode (Table 3)."""
    route_s = build_fleet(at.config()).delays.route_s
    carried = [measured.commands.get(kind, 0.0) * route_s for kind in ("Route", "Interrupt")]
    return [measured.pull_s, *carried, measured.prefill_s, measured.decode_s]


def _filled(found: Found, at: Point) -> bool:
    bound = _bound(at)
    only = sum(set(lags) == {bound} for lags in found[at].lags)
    return only > len(found[at].lags) / 2


def _bound(at: Point) -> int:
    return int(at.config().pipeline.admission.options["bound"])


def _cost_error(states: list[tuple[int, float]]) -> float:
    """Error of the fitted cost model against the simulator's own, over the states of one instance (Figure 24)."""
    cost = DecodeCost.of(model("Qwen3-30B-A3B"), device("H20"), 1)
    steps = [(tokens, running, cost.step_s(running, tokens)) for running, tokens in states]
    return throughput_error(fit_coefficients(cost, longest=LONGEST), steps)


def _launched(at: Point) -> list[float]:
    """Groups, samples per group and trajectories, with a surplus of one sixteenth at group or at batch level."""
    sixteenth = {"pipeline__batching__name": "redundant"}
    by_groups = build_spec(at.over(**sixteenth, pipeline__batching__surplus_groups=8).config())
    by_samples = build_spec(at.over(**sixteenth, pipeline__batching__surplus_samples=1).config())
    groups = by_groups.batch_groups + by_groups.batching.surplus_groups
    trajectories = {groups * samples(by_groups), by_samples.batch_groups * samples(by_samples)}
    return [groups, samples(by_samples), trajectories.pop() if len(trajectories) == 1 else math.nan]


def _flat(at: Point) -> bool:
    """Whether moving weights takes equally long on many and on few devices, half of which train (Figure 23)."""
    halves = [
        build_fleet(at.over(fleet__trainer__gpus=gpus // 2, fleet__rollout__gpus=gpus // 2).config()).weights
        for gpus in SCALES
    ]
    return all(
        max(seconds) <= FLAT * min(seconds)
        for seconds in ([one.stall_s for one in halves], [one.pull_s for one in halves])
    )


def measures(*, quick: bool) -> dict[str, TargetMeasure]:
    """The measures of all targets, by the target's id."""
    return throughput_measures(quick=quick) | detail_measures(quick=quick)


PAPER = Paper("staleflow", PACKAGE, PARAMETERS, measures, orders)
