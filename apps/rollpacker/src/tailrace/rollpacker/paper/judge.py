"""The judge beside the actor: what they take from each other, and what copying its layers costs (sections 4.3 and 6.5)."""

from __future__ import annotations

from collections.abc import Sequence

from tailrace.fleetsim.hardware import device, model
from tailrace.fleetsim.reproduce import TargetMeasure
from tailrace.fleetsim.reproduce.steps import StepParts
from tailrace.reward.judge.cost import layer_flops, pass_s
from tailrace.rollpacker.paper.points import ROLLPACKER, point, value

JUDGE, TOKENS = "Qwen2.5-7B", 32_768
OFFLOADED = 2
"""Every second layer is in host memory."""


def measures(*, quick: bool) -> dict[str, TargetMeasure]:
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
