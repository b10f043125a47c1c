"""Axis admission: a limit on open groups (AReaL, verl's fully async recipe). Plugin ``in-flight-cap``. A baseline."""

from __future__ import annotations

from dataclasses import dataclass

from tailrace.staleness.limits import whole
from tailrace.staleness.lockstep import LockstepGate
from tailrace.staleness.sampled import SampledGate


@dataclass(frozen=True, slots=True)
class InFlightCap:
    """A group starts while groups started - dropped - consumed < (bound + 1) * batch, at whatever version a replica has.

    Guarantees: at most (bound + 1) * batch groups are open.

    Does not guarantee: any bound for any group (the gate's `bound` is None). Only if groups started at the trainer's version,
    were consumed in that very order and never dropped, would none be older than `bound`. It is overshot

    * if batches form in the order of completion: a long group is overtaken by later batches any number of times;
    * if the sampler prefers new groups to old ones;
    * if groups are dropped (filtering, redundancy): each drop admits another group, behind which older ones wait;
    * if replicas serve several versions: a group may start at one that is old already.

    With `in_order` none of this happens and `bound` is guaranteed: what StaleFlow (section 2.3) takes such systems for when it
    counts them among those with strict control. A batch then waits for its own longest group, whatever else is complete.

    Args:
        bound: batches that may be open beyond the next one. A limit on numbers, not on ages.
        in_order: batches take groups in the order in which these started.

    Raises:
        LimitError: the bound is below 0.
    """

    bound: int = 1
    in_order: bool = False

    def __post_init__(self) -> None:
        whole("bound", self.bound)

    def gate(self, batch_groups: int) -> SampledGate | LockstepGate:
        """With nothing started and the trainer at version 0.

        Raises:
            LimitError: `batch_groups` is below 1.
        """
        if self.in_order:
            return LockstepGate("in-flight-cap", self.bound, batch_groups)
        return SampledGate("in-flight-cap", batch_groups, cap=(self.bound + 1) * whole("batch_groups", batch_groups))
