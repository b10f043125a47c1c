"""Axis admission: a limit on open groups (AReaL, verl's fully async recipe). Plugin ``in-flight-cap``. A baseline."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from tailrace.contracts import AdmissionPolicy, Tried
from tailrace.staleness.errors import whole
from tailrace.staleness.inherent import SampledGate
from tailrace.staleness.lockstep import LockstepGate


@dataclass(frozen=True, slots=True)
class InFlightCap(AdmissionPolicy):
    """A group starts, at any version, while groups started - dropped - consumed < (bound + 1) * batch.

    Guarantees: at most (bound + 1) * batch groups are open.
    Does not guarantee: any bound on a group's staleness (the gate's `bound` is None). Staleness stays within `bound` only if
    every group starts at the trainer's version, is consumed in the order of starts and is never dropped. It exceeds `bound`
    * if batches form in the order of completion: any number of later batches may overtake a long group;
    * if the sampler prefers new groups to old ones;
    * if groups are dropped (filtering, redundancy): each drop lets another group start, which may overtake older ones;
    * if replicas serve several versions: a group may start at a version that is old already.
    With `in_order` none of this happens and `bound` is guaranteed. StaleFlow (section 2.2) assumes this when it counts such
    systems among those with strict control. A batch then waits for its own longest group, whatever else is complete.

    Args:
        bound: batches that may be open beyond the next one. It limits numbers, not ages.
        in_order: whether batches take groups in the order in which they started.

    Raises:
        LimitError: the bound is below 0.
    """

    bound: Annotated[int, Tried((0, 1, 2))] = 1
    in_order: bool = False

    def __post_init__(self) -> None:
        whole("bound", self.bound)

    def gate(self, batch_groups: int) -> SampledGate | LockstepGate:
        """A gate with no group started and the trainer at version 0.

        Raises:
            LimitError: `batch_groups` is below 1.
        """
        if self.in_order:
            return LockstepGate("in-flight-cap", self.bound, batch_groups)
        return SampledGate("in-flight-cap", batch_groups, cap=(self.bound + 1) * whole("batch_groups", batch_groups))
