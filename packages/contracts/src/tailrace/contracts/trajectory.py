"""Trajectories: what a replica generates, a scorer rewards and a trainer consumes.

Invariant (design, 3): the tokens, log-probabilities and versions of a trajectory line up token by token, whatever was
interrupted, moved or resumed. A `Segment` cannot be built otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from tailrace.contracts.record import record


class Purpose(StrEnum):
    """Why a trajectory is generated."""

    TRAIN = "train"
    EVAL = "eval"


class FinishReason(StrEnum):
    """Why generation of a trajectory ended."""

    STOP = "stop"
    LENGTH = "length"


@dataclass(frozen=True, slots=True)
class Segment:
    """A run of response tokens that one weight version produced.

    Args:
        version: the weight version.
        tokens: token ids, in order.
        logprobs: the behaviour policy's log-probability of each token (natural log), same length as `tokens`.

    Raises:
        ValueError: the lengths differ.
    """

    version: int
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.tokens) != len(self.logprobs):
            raise ValueError(f"a segment of {len(self.tokens)} tokens came with {len(self.logprobs)} log-probabilities")


@record
class TrajectoryRef:
    """A trajectory as the controller knows it: metadata only.

    Args:
        trajectory: unique id within the run, for example ``"12.3"`` (group 12, sample 3).
        group: number of the group; for an evaluation, the index of the problem.
        sample: index within the group, from 0.
        purpose: training or evaluation.
        mode: the evaluation's decoding mode (``"sampled"``, ``"greedy"``, ...); empty for training.
        kept: response tokens that exist already, to be resumed from the partial-response pool.
        prompt: index in the prompt stream; for an evaluation, of the problem.
    """

    trajectory: str
    group: int
    sample: int
    purpose: Purpose = Purpose.TRAIN
    mode: str = ""
    kept: int = 0
    prompt: int = 0


@dataclass(frozen=True, slots=True)
class Experience:
    """A finished trajectory with its data: what a scorer reads and a trainer trains on.

    Args:
        trajectory: id of the trajectory.
        group: index of the group; advantages are normalised within it.
        prompt: prompt token ids.
        segments: response tokens with their versions, in order.
        finish: why generation ended.
        reward: the verifier's reward, None until it was scored.
        completed_version: the trainer's version when generation finished (inherent staleness M - K, Laminar section 6).
    """

    trajectory: str
    group: int
    prompt: tuple[int, ...]
    segments: tuple[Segment, ...]
    finish: FinishReason = FinishReason.STOP
    reward: float | None = None
    completed_version: int | None = None
    metadata: dict[str, object] = field(default_factory=dict, compare=False)

    @property
    def tokens(self) -> tuple[int, ...]:
        """All response token ids."""
        return tuple(token for segment in self.segments for token in segment.tokens)

    @property
    def logprobs(self) -> tuple[float, ...]:
        """The behaviour log-probability of every response token."""
        return tuple(value for segment in self.segments for value in segment.logprobs)

    @property
    def oldest_version(self) -> int:
        """The oldest version that produced a token: staleness is counted from it."""
        return min((segment.version for segment in self.segments), default=0)

    @property
    def newest_version(self) -> int:
        """The newest version that produced a token."""
        return max((segment.version for segment in self.segments), default=0)
