"""The protocols of what a replica needs from outside: prompts and kept tokens, a place for new tokens, weights, sampling."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from tailrace.contracts import AdapterWeights, PartialDelta, Resume, Sampling, TrajectoryRef


class TrajectorySource(Protocol):
    """The trajectory store for a replica. `begin` and `append` are called from different threads."""

    def begin(self, replica: str, version: int, refs: Sequence[TrajectoryRef], seq: int) -> Sequence[Resume]:
        """Take trajectories over for a replica.

        Args:
            seq: number of the `Route`. Trajectories that were dropped by a later command are left out of the answer.
        """
        ...

    def append(self, replica: str, deltas: Sequence[PartialDelta]) -> Sequence[str]:
        """Store new tokens, and return when they are durable.

        Returns:
            Ids of trajectories that no longer belong to this replica; their tokens were not stored.
        """
        ...


class WeightSource(Protocol):
    """The relay for a replica."""

    def load(
        self, version: int, timeout_s: float
    ) -> AbstractContextManager[Iterable[tuple[str, Any]] | AdapterWeights]:
        """The complete, checksummed weights of a version, valid inside the context.

        They are Hugging Face names and full tensors or, for an engine with the ability ``adapters``, an adapter of the weights
        that the engine was started with.

        Raises:
            Exception: no relay has the version, it arrived damaged, or the deadline passed.
        """
        ...


class SamplingRule(Protocol):
    """Says how a trajectory's tokens are drawn, by its purpose and mode."""

    def __call__(self, ref: TrajectoryRef) -> Sampling:
        """The sampling of one trajectory."""
        ...
