"""The parallelism planner where memory is short: Qwen2.5-14B on 16 H800, responses of up to 32k (section 6.4).

Lengths are those that filled the KV caches of section 4.2: Qwen2.5's usual ones never do.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import replace

from tailrace.fleetsim.reproduce import Found, Point, TargetMeasure, Toml
from tailrace.fleetsim.reproduce.steps import StepParts
from tailrace.pipeline.run.build import build_spec
from tailrace.rollpacker.paper.points import (
    MODELS,
    VERL,
    planned,
    point,
    pressure,
    tail_batched,
)
from tailrace.rollpacker.paper.rounds import of_kind

LIMIT = 32_768
GROWING = 13
"""Steps from 8k to 32k, 2k longer each."""


def measures(*, quick: bool) -> dict[str, TargetMeasure]:
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
