"""Axis provisioning: who gets which devices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tailrace.contracts import FleetView, Health, StartReplica
from tailrace.pipeline.errors import PolicyError


@dataclass(frozen=True, slots=True)
class Static:
    """A fixed number of replicas, from the start to the end. One that is evicted stays away.

    Args:
        count: rollout replicas.

    Raises:
        PolicyError: fewer than one.
    """

    count: int = 2

    def __post_init__(self) -> None:
        if self.count < 1:
            raise PolicyError(f"found count={self.count}, expected at least 1")

    def plan(self, view: FleetView) -> Sequence[StartReplica]:
        """All of them at the start, when there is none, and nothing after that."""
        if any(member.health is not Health.STOPPING for member in view.of("replica")):
            return ()
        return [StartReplica()] * self.count
