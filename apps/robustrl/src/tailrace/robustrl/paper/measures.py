"""The measure of each number: what a fault of the trainer costs (section 7.2), and what was put in.

A fault costs effective training time and time of the run. What was put in are seconds of restarts, checkpoints and windows, and
what holds by construction (sections 4, 5 and 7).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from tailrace.faulttol import RankLevel, RoleAware
from tailrace.faulttol.detection import TRAINING
from tailrace.fleetsim.fleet.build import build_fleet
from tailrace.fleetsim.hardware import model
from tailrace.fleetsim.reproduce import Found, OrderStatement, Paper, Point, TargetMeasure
from tailrace.robustrl.paper.points import (
    MODES,
    PACKAGE,
    PARAMETERS,
    SETTINGS,
    STEPS,
    WORKLOADS,
    byterobust,
    fault_free,
    robustrl,
    value,
)

HOUR_S = 3600.0
SMALL = "8b-math"
SLIDING = "semi-sync"
"""The mode of Figure 12."""
WELL = 0.9
"""Five minutes of which at least this share is effective saw no fault."""


def fault_measures(*, quick: bool) -> dict[str, TargetMeasure]:
    """The measures of the targets of section 7.2."""
    ours = {at: robustrl(*at, quick=quick) for at in SETTINGS}
    theirs = {at: byterobust(*at, quick=quick) for at in SETTINGS}
    free = {at: fault_free(*at, quick=quick) for at in SETTINGS}
    small = [(SMALL, mode) for mode in MODES]
    pairs = [*(ours[at] for at in small), *(theirs[at] for at in small)]
    both, every = [*ours.values(), *theirs.values()], [*ours.values(), *theirs.values(), *free.values()]
    slid = theirs[SMALL, SLIDING]

    def saved(lab: Found) -> list[float]:
        return [1.0 - _hours(lab, ours[at]) / _hours(lab, theirs[at]) for at in SETTINGS]

    def saved_hours(lab: Found) -> list[float]:
        of = {at: _hours(lab, theirs[at]) - _hours(lab, ours[at]) for at in SETTINGS}
        return [end(of[name, mode] for mode in MODES) for name in WORKLOADS for end in (min, max)]

    def overhead(lab: Found, at: tuple[str, str], by: Point) -> float:
        return 1.0 - _hours(lab, free[at]) / _hours(lab, by)

    def overheads(lab: Found) -> list[float]:
        return [statistics.fmean(overhead(lab, at, system[at]) for at in SETTINGS) for system in (ours, theirs)]

    def in_order(lab: Found) -> bool:
        of = {at: overhead(lab, at, theirs[at]) for at in SETTINGS}
        grows = all(of[name, "async"] < of[name, "semi-sync"] < of[name, "sync"] for name in WORKLOADS)
        hours = dict(zip(((name, end) for name in WORKLOADS for end in ("low", "high")), saved_hours(lab), strict=True))
        return grows and all(
            hours["32b-swe", end] > hours[name, end] for name in WORKLOADS[:2] for end in ("low", "high")
        )

    return {
        "RR-ETTR": TargetMeasure(pairs, lambda lab: [_mean(lab, [of[at] for at in small]) for of in (ours, theirs)]),
        "RR-ETTR-gain": TargetMeasure(
            pairs, lambda lab: _ends([_ettr(lab, ours[at]) - _ettr(lab, theirs[at]) for at in small])
        ),
        "RR-ETTR-slide": TargetMeasure([slid], lambda lab: [_during_a_fault(lab, slid)]),
        "RR-E2E-pct": TargetMeasure(both, lambda lab: _ends(saved(lab))),
        "RR-E2E-hours": TargetMeasure(both, saved_hours),
        "RR-OVH": TargetMeasure(every, overheads),
        "RR-OVH-order": TargetMeasure(every, lambda lab: [in_order(lab)]),
    }


def _hours(found: Found, at: Point) -> float:
    """The run's hours, scaled to the paper's number of steps."""
    return found[at].result.duration_s / HOUR_S * STEPS / at.config().pipeline.steps


def _ettr(found: Found, at: Point) -> float:
    effective = found[at].effective
    assert effective is not None
    return effective.ettr


def _mean(found: Found, points: Sequence[Point]) -> float:
    return statistics.fmean(_ettr(found, at) for at in points)


def _ends(values: Sequence[float]) -> list[float]:
    return [min(values), max(values)]


def _during_a_fault(found: Found, at: Point) -> float:
    """The mean, over the faults, of the lowest sample of five minutes around each."""
    effective = found[at].effective
    assert effective is not None
    lows, below = [], []
    for _, ettr, _ in effective.sliding:
        if ettr < WELL:
            below.append(ettr)
        elif below:
            lows.append(min(below))
            below = []
    return statistics.fmean([*lows, *([min(below)] if below else [])])


TAIL_S = 1050.0
"""The longest rollouts of 32B-SWE in seconds (Figure 15): what waits for the last of them learns nothing before."""
SOURCES = 16
"""Devices of the trainer in Figure 18, each of which serves one replica at a time."""


def input_measures(*, quick: bool) -> dict[str, TargetMeasure]:
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


def measures(*, quick: bool) -> dict[str, TargetMeasure]:
    """The measures of all targets that are simulated, by the target's id."""
    return fault_measures(quick=quick) | input_measures(quick=quick)


def orders(*, quick: bool) -> dict[str, OrderStatement]:  # noqa: ARG001  its statements are targets
    """No statements beside the targets."""
    return {}


PAPER = Paper("robustrl", PACKAGE, PARAMETERS, measures, orders)
