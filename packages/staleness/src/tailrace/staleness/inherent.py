"""Axis admission: whatever staleness generation and training speed bring (Laminar, section 6). Plugin ``inherent``."""

from __future__ import annotations

from dataclasses import dataclass

from tailrace.staleness.limits import whole
from tailrace.staleness.sampled import SampledGate


@dataclass(frozen=True, slots=True)
class Inherent:
    """Anything may start at any time, and a batch is trainable as soon as enough groups are complete.

    Guarantees: without a bound, nothing; staleness follows from generation latency and the trainer's speed. With a bound, no
    group that is consumed is older than it: complete groups above it are refused at consumption.

    Does not guarantee: with a bound, that what was generated is used. Refused work is lost, long trajectories first, which
    shifts the lengths that are trained on; `Bounded` does not start what it could not use.

    Args:
        bound: versions by which a group may be behind the trainer at consumption; None for no limit.

    Raises:
        LimitError: the bound is below 0.
    """

    bound: int | None = None

    def __post_init__(self) -> None:
        if self.bound is not None:
            whole("bound", self.bound)

    def gate(self, batch_groups: int) -> SampledGate:
        """With nothing started and the trainer at version 0.

        Raises:
            LimitError: `batch_groups` is below 1.
        """
        return SampledGate("inherent", batch_groups, max_age=self.bound)
