"""Batches that start whole, one after the other: what an admission gate may have beside the rest."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from tailrace.contracts.policies import AdmissionGate


@runtime_checkable
class StartsBatchwise(AdmissionGate, Protocol):
    """What an `AdmissionGate` may also have: the prompts of a batch and the version that generates it do not depend on time.

    Its `room` lets the controller launch a batch only when the one before has started whole. The controller in turn has no
    optimizer step end a batch while a launched group may start but has not: the version that the step makes would be too new
    for it.
    """

    @property
    def batchwise(self) -> bool:
        """Whether it does so; always the same."""
        ...
