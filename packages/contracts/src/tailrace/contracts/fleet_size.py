"""What a provisioning policy has beside the rest if a run may come to have more replicas than it began with."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from tailrace.contracts.policies import ProvisioningPolicy


@runtime_checkable
class AddsReplicas(ProvisioningPolicy, Protocol):
    """What a `ProvisioningPolicy` must also have if its replicas may use more devices than those of the start.

    Before a run starts, it is checked that a cluster has devices for all of them: one that is added would otherwise wait for
    its own until its deadline. The answers are always the same.
    """

    @property
    def start(self) -> int:
        """Replicas that it starts a run with, at least 1."""
        ...

    @property
    def most(self) -> int:
        """Most replicas at once, without those that are stopping; at least `start`."""
        ...

    @property
    def spans(self) -> int | None:
        """Devices of each of its replicas; None: as many as the run's configuration says."""
        ...
