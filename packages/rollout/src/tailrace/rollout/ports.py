"""What a replica needs from outside: prompts and kept tokens, a place for new tokens, weights, decoding modes.

The executor adapts the trajectory store and the relay to these protocols. No type of theirs appears here: an object with
the same attributes as `Resume` will do.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from tailrace.contracts import FinishReason, Sampling, TrajectoryRef


@dataclass(frozen=True, slots=True)
class Resume:
    """A trajectory to generate or to go on with.

    Args:
        trajectory: its id.
        prompt_tokens: prompt token ids.
        kept_tokens: response token ids that exist already.
        complete: the response is complete; nothing is left to generate.
    """

    trajectory: str
    prompt_tokens: Sequence[int]
    kept_tokens: Sequence[int]
    complete: bool = False


@dataclass(frozen=True, slots=True)
class PartialDelta:
    """New response tokens of one trajectory, which one weight version produced.

    Args:
        trajectory: its id.
        offset: index in the response of the first of them.
        version: the weight version.
        tokens: token ids.
        logprobs: log-probability of each under the policy that drew it, same length as `tokens`.
        finish: set when the response is complete.
    """

    trajectory: str
    offset: int
    version: int
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish: FinishReason | None = None


class ResumeLike(Protocol):
    """What `TrajectorySource.begin` returns: `Resume`, or a record with its attributes."""

    @property
    def trajectory(self) -> str:
        """Id of the trajectory."""
        ...

    @property
    def prompt_tokens(self) -> Sequence[int]:
        """Prompt token ids."""
        ...

    @property
    def kept_tokens(self) -> Sequence[int]:
        """Response token ids that exist already."""
        ...

    @property
    def complete(self) -> bool:
        """Whether nothing is left to generate."""
        ...


class TrajectorySource(Protocol):
    """The trajectory store as a replica sees it. `begin` and `append` are called from different threads."""

    def begin(self, replica: str, version: int, refs: Sequence[TrajectoryRef]) -> Sequence[ResumeLike]:
        """Take trajectories over for a replica. Those that are dropped by now are left out of the answer."""
        ...

    def append(self, replica: str, deltas: Sequence[PartialDelta]) -> Sequence[str]:
        """Keep new tokens, and return when they are safe.

        Returns:
            ids of trajectories that do not belong to this replica any more, whose tokens were not kept.
        """
        ...


class WeightSource(Protocol):
    """The relay as a replica sees it."""

    def load(self, version: int, timeout_s: float) -> AbstractContextManager[Iterable[tuple[str, Any]]]:
        """The complete, checksummed weights of a version: Hugging Face names and full tensors, valid inside the context.

        Raises:
            Exception: nobody holds the version, it arrived damaged, or the deadline passed.
        """
        ...


class SamplingTable(Protocol):
    """How a trajectory's tokens are drawn, by its purpose and mode."""

    def __call__(self, ref: TrajectoryRef) -> Sampling:
        """The sampling of one trajectory."""
        ...
