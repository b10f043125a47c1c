"""Repacking on and off, 32B on 128 GPUs (section 8.4, Table 1)."""

from __future__ import annotations

import statistics

from tailrace.fleetsim.reproduce import Found, TargetMeasure
from tailrace.fleetsim.reproduce.targets import Value
from tailrace.laminar.paper.points import point


def measures(*, quick: bool) -> dict[str, TargetMeasure]:
    """The measures of section 8.4's targets."""
    on = point("laminar", "32B", 128, quick=quick).over(probe="moves")
    off = point("laminar", "32B", 128, quick=quick).over(pipeline__relocation="none")
    both = (on, off)

    def kv(found: Found, *which: int) -> list[Value]:
        return [found[both[index]].result.kv_share for index in which]

    def ratio(found: Found, name: str) -> float:
        first, second = (getattr(found[each].result, name) for each in both)
        return float(first / second)

    return {
        "LAM-REPACK-tput": TargetMeasure(both, lambda lab: [ratio(lab, "generated_tokens_per_s") - 1]),
        "LAM-REPACK-kv-on": TargetMeasure([on], lambda lab: kv(lab, 0)),
        "LAM-REPACK-kv-off": TargetMeasure([off], lambda lab: kv(lab, 1)),
        "LAM-REPACK-kv-rel": TargetMeasure(both, lambda lab: [ratio(lab, "kv_share") - 1]),
        "LAM-REPACK-lat-on": TargetMeasure(
            [on], lambda lab: [lab[on].result.latency_mean_s, lab[on].result.latency_max_s]
        ),
        "LAM-REPACK-lat-off": TargetMeasure(
            [off], lambda lab: [lab[off].result.latency_mean_s, lab[off].result.latency_max_s]
        ),
        "LAM-REPACK-neutral": TargetMeasure(both, lambda lab: [ratio(lab, "latency_max_s")]),
        "LAM-REPACK-ovh": TargetMeasure([on], lambda lab: [statistics.fmean(lab[on].overheads_s or [0.0])]),
        "LAM-DATAPLANE": TargetMeasure([], lambda _: [_data_s(on.config().fleet)]),
    }


def _data_s(fleet: dict[str, dict[str, float]]) -> float:
    return fleet["trainer"]["data_s"]
