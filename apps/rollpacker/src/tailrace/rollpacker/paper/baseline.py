"""The synchronous baseline, and what was put in: shares of a step, lengths, timeouts, costs (sections 2.2 and 4)."""

from __future__ import annotations

import math
import statistics

from tailrace.fleetsim.cost import DecodeCost
from tailrace.fleetsim.fleet.build import build_fleet
from tailrace.fleetsim.hardware import device, model
from tailrace.fleetsim.reproduce import Found, Point, TargetMeasure
from tailrace.fleetsim.workload.config import WorkloadConfig
from tailrace.rollpacker.paper.points import MODELS, ROLLPACKER, VERL, point, value

CONTEXT = 2048
"""Tokens of each context in the profiler's comparison of batches. The paper does not say; the middle of what it ran."""


def measures(*, quick: bool) -> dict[str, TargetMeasure]:
    """The measures of the targets of sections 2.2 and 4.1, and of inputs."""
    alone = {kind: point(VERL, "14B", quick=quick, kind=kind) for kind in ("math", "code", "judge")}
    return {
        "RP-T1": TargetMeasure(
            list(alone.values()), lambda lab: [share for at in alone.values() for share in shares(lab, at)]
        ),
        "RP-LEN": TargetMeasure((), lambda _: _lengths()),
        "RP-PROFILE": TargetMeasure((), lambda _: [_step_s(64) / _step_s(32)]),
        "RP-REW-params": TargetMeasure((), lambda _: _timeouts(point(ROLLPACKER, "14B", quick=quick))),
    }


def shares(found: Found, at: Point) -> list[float]:
    """Rollout's, reward's and training's shares of a mean step."""
    steps = found[at].steps
    rollout, scored, step = (
        statistics.fmean(getattr(one, name) for one in steps) for name in ("rollout_s", "scored_s", "step_s")
    )
    return [rollout / step, (scored - rollout) / step, (step - scored) / step]


def _lengths() -> list[float]:
    """Figures of 14B's lengths; the longest is that of a batch of 1,024, on average."""
    at = MODELS["14B"]
    median, sigma = value("response.median"), value("16k.response.sigma")
    table = WorkloadConfig.model_validate({"response": {"median": median, "sigma": sigma}}).build(0, at.limit)
    longest = statistics.fmean(
        max(sample.turns[0][0] for index in range(batch * 128, batch * 128 + 128) for sample in table.group(index, 8))
        for batch in range(20)
    )
    p75 = median * math.exp(sigma * statistics.NormalDist().inv_cdf(0.75))
    return [longest / median, p75, float(at.limit)]


def _step_s(running: int) -> float:
    at = MODELS["14B"]
    cost = DecodeCost.of(model(at.shape), device("H800"), at.parallel)
    return cost.step_s(running, running * CONTEXT) + value("step_s")


def _timeouts(at: Point) -> list[float]:
    fleet = build_fleet(at.config())
    rule = fleet.scoring["code"].timeout
    (code,) = [kind for kind in at.config().fleet["workload"]["scoring"] if kind["kind"] == "code"]
    return [rule.factor, rule.t_min_s, rule.t_max_s, fleet.scoring["math"].timeout.t_max_s, code["endless"]]
