"""Axis provisioning: a fixed number of replicas, which keep their devices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tailrace.contracts import Facts, FleetView, Health, ProvisioningPolicy, StartReplica
from tailrace.repack.errors import LoadError


@dataclass(frozen=True, slots=True)
class Static(ProvisioningPolicy):
    """A fixed number of replicas, started once. Evicted ones are not replaced. Plugin ``static``.

    Args:
        count: number of replicas.

    Raises:
        LoadError: `count` is below 1.
    """

    count: int = 2

    def __post_init__(self) -> None:
        if self.count < 1:
            raise LoadError(f"found count={self.count}, expected at least 1")

    @classmethod
    def options_from(cls, facts: Facts) -> dict[str, object]:
        """The run's replicas."""
        return {"count": facts.replicas}

    def plan(self, view: FleetView) -> Sequence[StartReplica]:
        """Start all replicas while there is none; nothing after that."""
        if any(member.health is not Health.STOPPING for member in view.of("replica")):
            return ()
        return [StartReplica()] * self.count
