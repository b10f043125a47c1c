"""A machine with two replicas dies, 32B on 128 GPUs (section 8.5, Figure 16)."""

from __future__ import annotations

from collections.abc import Sequence

from tailrace.fleetsim.host.recorder import BatchRow
from tailrace.fleetsim.reproduce import Found, Point, TargetMeasure
from tailrace.laminar.paper.points import point

MOST_LOST = 0.15
KILLED_AT_STEP = 2  # counted among the measured steps
AFTER = 3  # batches after the recovery, in which generation is as fast as before


def measures(*, quick: bool) -> dict[str, TargetMeasure]:
    """The measures of section 8.5's targets."""
    healthy = point("laminar", "32B", 128, quick=quick)
    batches = dict(healthy.settings)
    step = int(str(batches["fleet.warm_up"])) + KILLED_AT_STEP
    longer = healthy.over(pipeline__steps=step + 1 + AFTER)
    killed = longer.over(faults=(f"replica:0@step{step}", f"replica:1@step{step}"))
    return {
        "LAM-RECOVER": TargetMeasure([killed], lambda lab: [lab[killed].recovered_s]),
        "LAM-RECOVER-train": TargetMeasure([longer, killed], lambda lab: [_unharmed(lab, longer, killed, step)]),
    }


def _unharmed(found: Found, healthy: Point, killed: Point, step: int) -> bool:
    """Whether training during the outage and generation over the whole run match the same run without the outage."""
    with_, without = found[killed].result, found[healthy].result
    lost = 1 - _tokens_per_s(with_.batches[step - 1 : step + 1]) / _tokens_per_s(without.batches[step - 1 : step + 1])
    back = _tokens_per_s(with_.batches[step:]) / _tokens_per_s(without.batches[step:])
    return lost < MOST_LOST and back > 1 - MOST_LOST


def _tokens_per_s(batches: Sequence[BatchRow]) -> float:
    return sum(batch.tokens for batch in batches[1:]) / (batches[-1].at_s - batches[0].at_s)
