"""What a fault of the trainer costs: effective training time, the time of a run, and the order of modes (section 7.2)."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from tailrace.fleetsim.reproduce import Found, Point, TargetMeasure
from tailrace.robustrl.paper.points import MODES, SETTINGS, STEPS, WORKLOADS, byterobust, fault_free, robustrl

HOUR_S = 3600.0
SMALL = "8b-math"
SLIDING = "semi-sync"
"""The mode of Figure 12."""
WELL = 0.9
"""Five minutes of which at least this share is effective saw no fault."""


def measures(*, quick: bool) -> dict[str, TargetMeasure]:
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
