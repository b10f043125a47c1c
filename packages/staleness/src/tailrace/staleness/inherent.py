"""Axis admission: staleness follows from the speeds of generation and training (Laminar, section 6). Plugin ``inherent``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from tailrace.contracts import AdmissionPolicy, Tried
from tailrace.staleness.errors import whole
from tailrace.staleness.sampled import SampledGate


@dataclass(frozen=True, slots=True)
class Inherent(AdmissionPolicy):
    """A group may start at any time, and a batch is trainable as soon as enough groups are complete.

    Guarantees: without a bound, nothing; staleness follows from generation latency and the trainer's speed. With a bound, no
    consumed group is older than it: older complete groups are refused at consumption.
    Does not guarantee: with a bound, that all generated groups are used. Refused work is lost, long trajectories first, which
    shifts the lengths that are trained on. `Bounded` avoids this: it does not start a group that it could not use.

    Args:
        bound: most versions by which a group may be behind the trainer at consumption; None for no limit.

    Raises:
        LimitError: the bound is below 0.
    """

    bound: Annotated[int | None, Tried((None, None, 0, 1, 2, 3))] = None

    def __post_init__(self) -> None:
        if self.bound is not None:
            whole("bound", self.bound)

    def gate(self, batch_groups: int) -> SampledGate:
        """A gate with no group started and the trainer at version 0.

        Raises:
            LimitError: `batch_groups` is below 1.
        """
        return SampledGate("inherent", batch_groups, max_age=self.bound)
