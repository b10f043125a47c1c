"""Hybrids: replicas on the trainer's devices, which yield to it and come back (RobustRL, section 2.1)."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from tailrace.contracts.policies import ProvisioningPolicy


@runtime_checkable
class YieldsDevices(ProvisioningPolicy, Protocol):
    """What a `ProvisioningPolicy` also has if it lends all hybrids to the trainer as a whole, for its steps.

    Its view has the next batch and the loads. `plan` is also asked when `yields_at` is reached, when the trainer begins and
    ends to compute, and when a hybrid that is to yield can. The trainer computes only while every hybrid that is up is lent, so
    all must be once the batch is ready: one that pulls or evaluates once it is done with that. They come back when the trainer
    needs them no more.
    """

    @property
    def yields_at(self) -> float:
        """Share of a batch's groups, above 0 and at most 1, that are complete when hybrids yield while others generate on."""
        ...
