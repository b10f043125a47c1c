"""What was put in: seconds of restarts, checkpoints and windows; and what holds by construction (sections 4, 5 and 7)."""

from __future__ import annotations

import math

from tailrace.faulttol import RankLevel, RoleAware
from tailrace.faulttol.detection import TRAINING
from tailrace.fleetsim.fleet.build import build_fleet
from tailrace.fleetsim.hardware import model
from tailrace.fleetsim.reproduce import TargetMeasure
from tailrace.robustrl.paper.points import byterobust, robustrl, value

TAIL_S = 1050.0
"""The longest rollouts of 32B-SWE in seconds (Figure 15): what waits for the last of them learns nothing before."""
SOURCES = 16
"""Devices of the trainer in Figure 18, each of which serves one replica at a time."""


def measures(*, quick: bool) -> dict[str, TargetMeasure]:
    """The measures of inputs and of identities."""
    return {
        "RR-ETTR-ratio": TargetMeasure((), lambda _: [_share_of_rollouts(quick=quick)]),
        "RR-RESTART": TargetMeasure((), lambda _: [_task_over_trainer(quick=quick)] * 2),
        "RR-RESTART-task": TargetMeasure((), lambda _: [value("task_restart_s")]),
        "RR-ROLLOUT": TargetMeasure((), lambda _: [_replica_s(quick=quick)]),
        "RR-RELAY": TargetMeasure((), lambda _: [_doubles()]),
        "RR-CKPT": TargetMeasure(
            (), lambda _: [build_fleet(robustrl("8b-math", "async", quick=quick).config()).delays.checkpoint_s]
        ),
        "RR-DETECT": TargetMeasure((), lambda _: [RoleAware().phase_s[TRAINING], RoleAware().replica_s]),
        "RR-DETECT-byte": TargetMeasure((), lambda _: [RankLevel().network_s, RankLevel().device_s]),
        "RR-DETECT-save": TargetMeasure((), lambda _: [TAIL_S - RoleAware().replica_s]),
        "RR-SYNC-ub": TargetMeasure((), lambda _: [_transfer_s()]),
    }


def _share_of_rollouts(*, quick: bool) -> float:
    fleet = build_fleet(robustrl("8b-math", "async", quick=quick).config())
    generating = sum(pool.replicas * pool.tp for pool in fleet.pools)
    return generating / fleet.gpus


def _task_over_trainer(*, quick: bool) -> float:
    theirs, ours = (
        build_fleet(system("8b-math", "async", quick=quick).config()).delays.trainer_restart_s
        for system in (byterobust, robustrl)
    )
    return theirs / ours


def _replica_s(*, quick: bool) -> float:
    (pool,) = build_fleet(robustrl("32b-math", "async", quick=quick).config()).pools
    return pool.rollout.restart_s


def _doubles() -> bool:
    """Whether the rounds of a transfer grow by one when its replicas double: each that has pulled is a source."""
    rounds = [math.ceil(math.log2(replicas / SOURCES + 1)) for replicas in (16, 48, 112, 240)]
    return rounds == [1, 2, 3, 4]


def _transfer_s() -> float:
    """Seconds of 235B over the four cards of a machine, 200 Gbps each."""
    shape = model("Qwen3-235B-A22B")
    return shape.weight_bytes / (4 * 25e9)
