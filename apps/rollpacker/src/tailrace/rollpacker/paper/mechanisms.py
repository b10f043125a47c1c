"""The measures of three mechanisms: the parallelism planner, the stream trainer, and the judge beside the actor."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from tailrace.fleetsim.hardware import device, model
from tailrace.fleetsim.reproduce import Found, Point, TargetMeasure, Toml
from tailrace.fleetsim.reproduce.steps import StepParts
from tailrace.pipeline.run.build import build_spec
from tailrace.reward.judge.memory import layer_flops, pass_s
from tailrace.rollpacker.paper.points import (
    MODELS,
    ROLLPACKER,
    VERL,
    planned,
    point,
    pressure,
    scaled_down,
    single_fetch,
    tail_batched,
    value,
    without_scale_down,
)
from tailrace.rollpacker.paper.rounds import of_kind, rollout_s
from tailrace.rollpacker.paper.speed import step_s


def measures(*, quick: bool) -> dict[str, TargetMeasure]:
    """The measures of these mechanisms' targets, by the target's id."""
    return planner_measures(quick=quick) | streaming_measures(quick=quick) | judge_measures(quick=quick)


# The parallelism planner where memory is short: Qwen2.5-14B on 16 H800, responses of up to 32k (section 6.4).
#
# Lengths are those that filled the KV caches of section 4.2: Qwen2.5's usual ones never do.

LIMIT = 32_768
GROWING = 13
"""Steps from 8k to 32k, 2k longer each."""


def planner_measures(*, quick: bool) -> dict[str, TargetMeasure]:
    """The measures of the targets of section 6.4."""
    fixed = tail_batched(_pressed(2, quick=quick))
    adapted = planned(fixed)
    rising = tail_batched(_pressed(1, quick=quick), 1.0, 1.0).over(
        pipeline__steps=GROWING, fleet__workload__drift=_drift()
    )
    rising_adapted = planned(rising)
    return {
        "RP-PLAN-trig": TargetMeasure((), lambda _: _triggers(planned(point(VERL, "14B", quick=quick)))),
        "RP-PLAN-lat": TargetMeasure([fixed, adapted], lambda lab: _faster(lab[fixed].steps, lab[adapted].steps)),
        "RP-PLAN-preempt": TargetMeasure([fixed, adapted], lambda lab: [_fewer(lab[fixed].steps, lab[adapted].steps)]),
        "RP-PLAN-dyn": TargetMeasure([rising, rising_adapted], lambda lab: _growing(lab, rising, rising_adapted)),
    }


def _pressed(tp: int, *, quick: bool) -> Point:
    at = point(VERL, replace(MODELS["14B"], gpus=16, parallel=tp, limit=LIMIT), quick=quick, kind="math")
    return replace(at, settings=(*at.settings, *pressure()))


def _drift() -> Toml:
    """Factors on lengths by version: a quarter in the first step, all in the last."""
    return Toml(f"[[0, 0.25], [{GROWING - 1}, 1.0]]")


def _triggers(at: Point) -> list[float]:
    policy = build_spec(at.config()).provisioning
    return [float(getattr(policy, name)) for name in ("rise", "calm")]


def _faster(fixed: Sequence[StepParts], adapted: Sequence[StepParts]) -> list[float]:
    """The smallest and largest speed-up of a short round's rollout."""
    short = zip(of_kind(fixed, "short"), of_kind(adapted, "short"), strict=True)
    ratios = [before.rollout_s / after.rollout_s for before, after in short]
    return [min(ratios), max(ratios)]


def _fewer(fixed: Sequence[StepParts], adapted: Sequence[StepParts]) -> float:
    before, after = (statistics.fmean(one.preemptions for one in of_kind(steps, "short")) for steps in (fixed, adapted))
    return 1 - after / before


def _growing(found: Found, fixed: Point, adapted: Point) -> list[float]:
    """The mean speed-up, and the steps, from 1, at which replicas first have 2 and 4 devices; 0 for never."""
    pairs = list(zip(found[fixed].steps, found[adapted].steps, strict=True))
    speedup = statistics.fmean(before.rollout_s / after.rollout_s for before, after in pairs)
    sizes = [after.tensor_parallel for _, after in pairs]
    return [speedup, *(next((at for at, size in enumerate(sizes, 1) if size >= wide), 0) for wide in (2, 4))]


# The stream trainer: when devices are lent, and what moving costs, Qwen2.5-7B on mathematics (section 6.6).

ORDER = ("adaptive", "30 %", "40 %", "20 %", "none")
"""Table 3, the fastest first."""


def streaming_measures(*, quick: bool) -> dict[str, TargetMeasure]:
    """The measures of the targets of section 6.6."""
    adaptive = point(ROLLPACKER, "7B", quick=quick, kind="math")
    triggers = {f"{share:.0%}".replace("%", " %"): scaled_down(adaptive, share) for share in (0.2, 0.3, 0.4)}
    table = {"adaptive": adaptive, "none": without_scale_down(adaptive), **triggers}
    fetched = [single_fetch(adaptive, share) for share in (0.2, 0.3, 0.4, 0.5)]
    moving = adaptive.over(probe="moves")
    return {
        "RP-ST-T3": TargetMeasure(list(table.values()), lambda lab: [_ordered(lab, table)]),
        "RP-ST-T4": TargetMeasure(
            [adaptive, *fetched],
            lambda lab: [step_s(lab, at, "long") / step_s(lab, adaptive, "long") for at in fetched],
        ),
        "RP-ST-mig": TargetMeasure(
            [adaptive, table["none"], moving],
            lambda lab: [
                max(lab[moving].overheads_s),
                1 - rollout_s(lab[table["none"]].steps, "long") / rollout_s(lab[adaptive].steps, "long"),
            ],
        ),
    }


def _ordered(found: Found, table: Mapping[str, Point]) -> bool:
    seconds = [step_s(found, table[name], "long") for name in ORDER]
    return all(before < after for before, after in pairwise(seconds))


# The judge beside the actor: what they take from each other, and what copying its layers costs (sections 4.3 and 6.5).

JUDGE, TOKENS = "Qwen2.5-7B", 32_768
OFFLOADED = 2
"""Every second layer is in host memory."""


def judge_measures(*, quick: bool) -> dict[str, TargetMeasure]:
    """The measures of the targets on the judge."""
    beside = point(ROLLPACKER, "7B", quick=quick, kind="judge")
    alone = beside.over(fleet__scoring__judge__slows=value("judge.slows") * value("without_mps"))
    return {
        "RP-REW-mps": TargetMeasure([beside, alone], lambda lab: [_slower(lab[alone].steps, lab[beside].steps)]),
        "RP-REW-pipe": TargetMeasure((), lambda _: [_pass_s(pipelined=False) / _pass_s(pipelined=True)]),
    }


def _slower(alone: Sequence[StepParts], beside: Sequence[StepParts]) -> float:
    """The largest ratio of step times."""
    return max(before.step_s / after.step_s for before, after in zip(alone, beside, strict=True))


def _pass_s(*, pipelined: bool) -> float:
    shape, kind = model(JUDGE), device("H800")
    weights = shape.gemm_params // shape.layers
    computing = layer_flops(weights=weights, query=shape.query_heads * shape.head_dim, tokens=TOKENS)
    copying_s = weights * shape.bytes_per_param / kind.pcie_bandwidth
    copies = [copying_s if layer % OFFLOADED else None for layer in range(shape.layers)]
    return pass_s([computing / kind.prefill_flops] * shape.layers, copies, pipelined=pipelined)
