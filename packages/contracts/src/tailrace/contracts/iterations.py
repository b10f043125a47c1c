"""What a provisioning policy may have beside the rest if it compares how long generation and training take."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from tailrace.contracts.policies import ProvisioningPolicy


@runtime_checkable
class WatchesIterations(ProvisioningPolicy, Protocol):
    """What a `ProvisioningPolicy` may also have: its view then has `FleetView.iterations` and `FleetView.lengths`.

    Trainer and replicas must have devices of their own: the times of stages that take turns on the same devices cannot be
    compared.
    """

    @property
    def iterations(self) -> int:
        """Most iterations that its view has, at least 1. The answer is always the same."""
        ...
