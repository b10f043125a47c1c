"""Gradients of complete groups before their batch is complete: what training policies may have beside the rest."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from tailrace.contracts.policies import TrainingPolicy


@runtime_checkable
class AddsGradients(Protocol):
    """What a `TrainingPolicy` also has if complete groups add gradients early: `streams` is true, `split` gives one part."""

    @property
    def groups_at_once(self) -> int:
        """Most groups of one `Accumulate`, which a cell of the trainer gets; at least 1, and always the same.

        0 if a policy that could add gradients makes optimizer steps instead, with the options that it has.
        """
        ...


@runtime_checkable
class FetchesOnce(AddsGradients, Protocol):
    """What an `AddsGradients` also has if cells get groups of a batch at one time only before it is complete."""

    @property
    def fetched_share(self) -> float:
        """Most groups that they get then, as a share of the batch: above 0, at most 1, and always the same."""
        ...


@runtime_checkable
class FillsCells(AddsGradients, Protocol):
    """What an `AddsGradients` also has if a cell gets groups of an incomplete batch only once they are enough to fill it."""

    @property
    def tokens_at_once(self) -> int:
        """Response tokens that fill a cell: at least 1, and always the same."""
        ...


def adds_gradients(training: TrainingPolicy) -> bool:
    """Whether a training policy has gradients of complete groups added before their batch is complete."""
    return isinstance(training, AddsGradients) and training.groups_at_once != 0
