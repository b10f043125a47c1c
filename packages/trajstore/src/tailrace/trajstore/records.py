"""What goes into and comes out of the trajectory store."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from tailrace.contracts import FinishReason, Purpose
from tailrace.trajstore.errors import TrajectoryDataError


class Status(StrEnum):
    """Where a trajectory is in its life.

    ``partial`` (in the partial-response pool) ─► ``complete`` (in the experience buffer) ─► ``consumed`` (trained on).
    Instead of being trained on it may become ``failed`` or ``discarded``. A rollback makes consumed ones complete again.
    """

    PARTIAL = "partial"
    COMPLETE = "complete"
    CONSUMED = "consumed"
    FAILED = "failed"
    DISCARDED = "discarded"


@dataclass(frozen=True, slots=True)
class Assignment:
    """A trajectory that an owner begins to generate, or goes on with.

    Args:
        trajectory: unique id.
        group: index of its group.
        prompt_tokens: prompt token ids.
        metadata: anything that JSON can say; comes back with the experience.
    """

    trajectory: str
    group: int
    prompt_tokens: tuple[int, ...]
    purpose: str = Purpose.TRAIN
    metadata: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Resume:
    """What exists of a trajectory that an owner has just begun.

    Args:
        kept_tokens: response token ids that exist already: generation goes on behind them.
        kept_logprobs: the behaviour log-probability of each.
        status: ``partial`` if there is something to generate. Otherwise the trajectory was finished before: it must not be
            generated again, and nothing more is accepted for it.
    """

    trajectory: str
    prompt_tokens: tuple[int, ...]
    kept_tokens: tuple[int, ...] = ()
    kept_logprobs: tuple[float, ...] = ()
    status: Status = Status.PARTIAL

    @property
    def complete(self) -> bool:
        """Whether there is nothing left to generate."""
        return self.status is not Status.PARTIAL


@dataclass(frozen=True, slots=True)
class PartialDelta:
    """New response tokens of one trajectory.

    Args:
        offset: response tokens before these.
        version: the weight version that produced them.
        logprobs: behaviour log-probability of each token (natural log).
        finish: set with the last tokens: the trajectory moves to the experience buffer.

    Raises:
        TrajectoryDataError: as many tokens as log-probabilities were expected, or the offset is negative.
    """

    trajectory: str
    offset: int
    version: int
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish: FinishReason | None = None

    def __post_init__(self) -> None:
        if len(self.tokens) != len(self.logprobs):
            raise TrajectoryDataError(
                f"trajectory {self.trajectory}: found {len(self.tokens)} tokens and {len(self.logprobs)} "
                "log-probabilities, expected one for each token"
            )
        if self.offset < 0:
            raise TrajectoryDataError(f"trajectory {self.trajectory}: found offset {self.offset}, expected at least 0")


@dataclass(frozen=True, slots=True)
class PartialResponse:
    """A trajectory in the partial-response pool.

    Args:
        owner: who generates it; None after `recover`.
        version: the version at which it was begun last.
        tokens: response tokens so far.
    """

    trajectory: str
    group: int
    owner: str | None
    version: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Recovery:
    """What survives a crash.

    Args:
        held: finished trajectories that were neither consumed nor failed nor discarded, with their reward or None.
        partial: unfinished trajectories, with their version and response tokens so far.
    """

    held: dict[str, float | None]
    partial: dict[str, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class ConsumedTrajectory:
    """A trajectory that was trained on, for reports.

    Args:
        oldest_version: the oldest version in it.
        completed_version: the trainer's version when generation finished. Generation staleness is the difference.
        consumed_version: the version that was trained with it. The trainer then held the version before.
        tokens: number of response tokens.
    """

    trajectory: str
    group: int
    oldest_version: int
    completed_version: int
    consumed_version: int
    reward: float | None
    tokens: int


@dataclass(frozen=True, slots=True)
class StoreStats:
    """Counts since the store was opened.

    Args:
        begun: trajectories that were new.
        resumed: trajectories that were begun again while partial.
        revived: trajectories that were begun again after they had failed or been discarded.
        kept_tokens: response tokens handed back to be resumed.
        dropped_tokens: response tokens thrown away, since another version produced them or the trajectory was revived.
        deltas: deltas stored.
        tokens: response tokens stored.
        resent: deltas that were stored already and came again.
        refused: deltas refused.
        finished: trajectories completed.
        consumed: trajectories consumed.
        rolled_back: consumptions undone.
    """

    begun: int = 0
    resumed: int = 0
    revived: int = 0
    kept_tokens: int = 0
    dropped_tokens: int = 0
    deltas: int = 0
    tokens: int = 0
    resent: int = 0
    refused: int = 0
    finished: int = 0
    consumed: int = 0
    rolled_back: int = 0
