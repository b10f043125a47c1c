"""Axis training: when gradients are computed and applied."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True, slots=True)
class FullBatch:
    """One optimizer step per batch."""

    def split(self, groups: Sequence[int]) -> Sequence[Sequence[int]]:
        """The batch."""
        return [groups]


@dataclass(frozen=True, slots=True)
class MiniBatch:
    """Several optimizer steps per batch, on disjoint parts of nearly equal size.

    Args:
        parts: optimizer steps per batch.
    """

    parts: int = 2

    def split(self, groups: Sequence[int]) -> Sequence[Sequence[int]]:
        """The parts, in order; fewer when there are fewer groups."""
        parts = min(self.parts, len(groups))
        bounds = [len(groups) * part // parts for part in range(parts + 1)]
        return [groups[start:end] for start, end in pairwise(bounds)]
