"""Axis training: when gradients are computed and applied."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from tailrace.pipeline.errors import PolicyError


@dataclass(frozen=True, slots=True)
class FullBatch:
    """One optimizer step per batch."""

    @property
    def streams(self) -> bool:
        """No: a batch is trained on when it is complete."""
        return False

    def split(self, groups: Sequence[int]) -> Sequence[Sequence[int]]:
        """The batch."""
        return [groups]


@dataclass(frozen=True, slots=True)
class MiniBatch:
    """Several optimizer steps per batch, on disjoint parts of nearly equal size.

    Args:
        parts: optimizer steps per batch.

    Raises:
        PolicyError: fewer than one.
    """

    parts: int = 2

    def __post_init__(self) -> None:
        if self.parts < 1:
            raise PolicyError(f"found parts={self.parts}, expected at least 1")

    @property
    def streams(self) -> bool:
        """No: a batch is trained on when it is complete."""
        return False

    def split(self, groups: Sequence[int]) -> Sequence[Sequence[int]]:
        """The parts, in order; fewer when there are fewer groups."""
        parts = min(self.parts, len(groups))
        bounds = [len(groups) * part // parts for part in range(parts + 1)]
        return [groups[start:end] for start, end in pairwise(bounds)]


@dataclass(frozen=True, slots=True)
class Streamed(MiniBatch):
    """Stream generation: each part of a batch is trained on as soon as enough groups are complete (Laminar, section 2.3).

    The trainer starts while the long trajectories of the batch are still being generated; what it waits for in the end is the
    last part alone. The same optimizer steps as `MiniBatch`, on groups in order of completion: early steps see short responses.

    Args:
        parts: see `MiniBatch`.
    """

    @property
    def streams(self) -> bool:
        """Yes."""
        return True
