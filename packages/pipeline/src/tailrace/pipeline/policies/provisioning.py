"""Axis provisioning: who gets which devices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tailrace.contracts import FleetView, Health, ProvisioningPolicy, StartReplica
from tailrace.pipeline.errors import PolicyError


@dataclass(frozen=True, slots=True)
class Static(ProvisioningPolicy):
    """A fixed number of replicas, started once. Evicted ones are not replaced.

    Args:
        count: number of replicas.

    Raises:
        PolicyError: `count` is below 1.
    """

    count: int = 2

    def __post_init__(self) -> None:
        if self.count < 1:
            raise PolicyError(f"found count={self.count}, expected at least 1")

    def plan(self, view: FleetView) -> Sequence[StartReplica]:
        """Start all replicas while there is none; nothing after that."""
        if any(member.health is not Health.STOPPING for member in view.of("replica")):
            return ()
        return [StartReplica()] * self.count
