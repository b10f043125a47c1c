"""One setting in detail: Qwen3-30B-A3B on 128 H20, limit 40K, bound 3 (section 6.5, Appendices A to C)."""

from __future__ import annotations

import math

from tailrace.fleetsim.cost import DecodeCost, fit_coefficients, throughput_error
from tailrace.fleetsim.fleet.build import build_fleet
from tailrace.fleetsim.fleet.quantities import samples
from tailrace.fleetsim.hardware import device, model
from tailrace.fleetsim.reproduce import Found, Point, ProbeFindings, TargetMeasure
from tailrace.pipeline.run.build import build_spec
from tailrace.staleflow.paper.points import detailed

FLAT = 1.10
SCALES = (16, 32, 64, 128)
LONGEST = 40_960


def measures(*, quick: bool) -> dict[str, TargetMeasure]:  # noqa: ARG001  a bound needs all its batches
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
