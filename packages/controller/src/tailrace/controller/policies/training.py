"""Axis training: when gradients are computed and applied."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated

from tailrace.contracts import EarlyGradients, TrainingPolicy, Tried
from tailrace.controller.errors import PolicyError


@dataclass(frozen=True, slots=True)
class FullBatch(TrainingPolicy):
    """One optimizer step per batch."""

    def split(self, groups: Sequence[int]) -> Sequence[Sequence[int]]:
        """One part with the whole batch."""
        return [groups]


@dataclass(frozen=True, slots=True)
class MiniBatch(TrainingPolicy):
    """Several optimizer steps per batch, on disjoint parts of nearly equal size, in the order in which groups were launched.

    A batch comes in order of completion: its first part would hold the short responses and the last one the long ones.

    Args:
        parts: optimizer steps per batch.

    Raises:
        PolicyError: `parts` is below 1.
    """

    parts: Annotated[int, Tried((1, 2, 3))] = 2

    def __post_init__(self) -> None:
        if self.parts < 1:
            raise PolicyError(f"found parts={self.parts}, expected at least 1")

    def split(self, groups: Sequence[int]) -> Sequence[Sequence[int]]:
        """The parts, in order; fewer if there are fewer groups."""
        parts, launched = min(self.parts, len(groups)), sorted(groups)
        bounds = [len(groups) * part // parts for part in range(parts + 1)]
        return [launched[start:end] for start, end in pairwise(bounds)]


@dataclass(frozen=True, slots=True)
class Streamed(FullBatch):
    """Gradients of complete groups are added up while the rest of the batch is generated (RollPacker, section 4.4).

    The weights change once, when the batch is complete, with the gradient of the whole batch. Each cell of the trainer that has
    nothing to do gets a few groups.

    Args:
        groups: most groups that a cell is given at once. Fewer begin sooner and end sooner; more make better micro-batches.

    Raises:
        PolicyError: `groups` is below 1.
    """

    groups: Annotated[int, Tried((1, 2, 4))] = 4

    def __post_init__(self) -> None:
        if self.groups < 1:
            raise PolicyError(f"found groups={self.groups}, expected at least 1")

    @property
    def streams(self) -> bool:
        """Groups are given to the trainer before their batch is complete."""
        return True

    def early_gradients(self) -> EarlyGradients:
        """A few groups at once."""
        return EarlyGradients(self.groups)


@dataclass(frozen=True, slots=True)
class SingleFetch(FullBatch):
    """Idle cells of the trainer get complete groups at one time of each batch; all others wait until the batch is complete.

    It is the baseline that RollPacker compares its stream of groups with (section 6.6, Table 4).

    Args:
        share: most groups that are fetched early, as a share of the batch.

    Raises:
        PolicyError: `share` is not above 0 and at most 1.
    """

    share: Annotated[float, Tried((0.2, 0.5))] = 0.2

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise PolicyError(f"found share={self.share}, expected above 0 and at most 1")

    @property
    def streams(self) -> bool:
        """Groups are given to the trainer before their batch is complete."""
        return True

    def early_gradients(self) -> EarlyGradients:
        """Gives as many groups as the share says, since there is only one fetch."""
        return EarlyGradients(sys.maxsize, share=self.share)


@dataclass(frozen=True, slots=True)
class DynamicBatch(MiniBatch):
    """Stream generation: the trainer begins as soon as complete groups fill it, whatever their number (StreamRL, section 4.1).

    It starts while the long trajectories of the batch are still being generated, so that in the end it waits only for the last
    of them. The weights change once, with the gradient of the whole batch.

    With more `parts` it makes an optimizer step on each, as soon as enough groups are complete (Laminar, section 2.3). These
    are the steps of `MiniBatch`, but on groups in order of completion: early steps train on short responses, late ones on long.

    Args:
        parts: optimizer steps per batch. More than 1 sorts the mini-batches by length.
        tokens: response tokens that fill a cell of the trainer; `tailrace profile` says how many do. Several parts have a fixed
            number of groups, whatever their tokens.

    Raises:
        PolicyError: a value is below 1.
    """

    parts: Annotated[int, Tried((1, 2, 3))] = 1
    tokens: Annotated[int, Tried((1, 100, 1_000))] = 2_048

    def __post_init__(self) -> None:
        MiniBatch.__post_init__(self)
        if self.tokens < 1:
            raise PolicyError(f"found tokens={self.tokens}, expected at least 1")

    @property
    def streams(self) -> bool:
        """Groups are given to the trainer before their batch is complete."""
        return True

    def early_gradients(self) -> EarlyGradients | None:
        """Give cells as many groups as fill one; None if a batch has several optimizer steps."""
        return EarlyGradients(sys.maxsize, tokens=self.tokens) if self.parts == 1 else None
