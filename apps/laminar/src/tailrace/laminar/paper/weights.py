"""Weights: broadcast, stall and waiting (sections 4.2 and 8.3, Appendix C)."""

from __future__ import annotations

from tailrace.fleetsim.cost import WeightCost
from tailrace.fleetsim.hardware import device, model
from tailrace.fleetsim.reproduce import Found, TargetMeasure
from tailrace.laminar.paper.points import PARALLEL, SCALES, TRAINERS, every, point

RELAYS = 128


def measures(*, quick: bool) -> dict[str, TargetMeasure]:
    """The measures of the targets of sections 4.2 and 8.3."""
    laminar = every("laminar", quick=quick)
    even = [
        (name, gpus)
        for name, scales in SCALES.items()
        for place, gpus in enumerate(scales)
        if name != "7B" and gpus >= 64 and 2 * TRAINERS["laminar"][name][place] == gpus
    ]
    stalls = {name: [laminar[name, gpus] for gpus in scales] for name, scales in SCALES.items()}
    return {
        "LAM-BCAST": TargetMeasure((), lambda _: [cost("72B").broadcast_s(RELAYS)]),
        "LAM-BCAST-flat": TargetMeasure((), lambda _: [cost("72B").broadcast_s(RELAYS) / cost("72B").broadcast_s(2)]),
        "LAM-STALL-32": TargetMeasure([laminar["32B", 128]], lambda lab: [lab[laminar["32B", 128]].result.stall_s]),
        "LAM-STALL-72": TargetMeasure([laminar["72B", 128]], lambda lab: [lab[laminar["72B", 128]].result.stall_s]),
        "LAM-STALL-const": TargetMeasure(
            [each for points in stalls.values() for each in points],
            lambda lab: [all(len({lab[each].result.stall_s for each in points}) == 1 for points in stalls.values())],
        ),
        "LAM-WAIT-avg": TargetMeasure(
            [laminar[where] for where in even],
            lambda lab: [max(1 - lab[laminar[where]].result.pull_mean_s / _global_s(*where) for where in even)],
        ),
        "LAM-WAIT-best": TargetMeasure(
            (), lambda _: [max(1 - cost(name).pull_s() / _global_s(name, gpus) for name, gpus in even)]
        ),
    }


def cost(name: str) -> WeightCost:
    """The cost of moving a model's weights in the paper's testbed."""
    return WeightCost.of(model(f"Qwen2.5-{name}"), device("H800"), PARALLEL[name])


def _global_s(name: str, gpus: int) -> float:
    """Seconds of a global synchronisation with equally many trainer and rollout devices (Figure 14)."""
    return cost(name).global_sync_s(gpus // 2, gpus // 2)


__all__ = ["Found", "cost", "measures", "point"]
