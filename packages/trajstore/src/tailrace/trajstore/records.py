"""Records that the trajectory store takes and returns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from tailrace.contracts import FinishReason, Purpose


class Status(StrEnum):
    """State of a trajectory.

    ``partial`` (in the partial-response pool) ─► ``complete`` (in the experience buffer) ─► ``consumed`` (trained on).
    A trajectory that is not consumed may become ``discarded``. A rollback makes consumed ones complete again.
    """

    PARTIAL = "partial"
    COMPLETE = "complete"
    CONSUMED = "consumed"
    DISCARDED = "discarded"


@dataclass(frozen=True, slots=True)
class Assignment:
    """A trajectory that an owner starts or resumes.

    Args:
        trajectory: unique id.
        group: number of its group.
        prompt_tokens: prompt token ids.
        purpose: training or evaluation.
        metadata: any JSON values; returned with the experience.
    """

    trajectory: str
    group: int
    prompt_tokens: tuple[int, ...]
    purpose: str = Purpose.TRAIN
    metadata: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PartialResponse:
    """A trajectory in the partial-response pool.

    Args:
        owner: the replica that generates it; None after `recover`.
        version: the version at which it was last begun.
        tokens: number of response tokens so far.
        turn_ended: whether its last turn has ended and no environment has answered yet.
    """

    trajectory: str
    group: int
    owner: str | None
    version: int
    tokens: int
    turn_ended: bool = False


@dataclass(frozen=True, slots=True)
class Turn:
    """A turn that ended with a question to an environment.

    Args:
        serial: names this turn for `TrajectoryStore.observe`; no other turn ever has it.
        number: its number in the trajectory, from 1.
        start: response tokens before it.
        response: its token ids, those that the model generated.
        observation: token ids that the environment answered; None if it has not yet.
        reward: the environment's reward of this step.
        finish: why the trajectory ended with it; None if it did not.
        fresh: whether the observation begins a context (`Segment.fresh`).
    """

    serial: int
    number: int
    start: int
    response: tuple[int, ...]
    observation: tuple[int, ...] | None = None
    reward: float = 0.0
    finish: FinishReason | None = None
    fresh: bool = False

    @property
    def done(self) -> bool:
        """Whether the trajectory ended with it."""
        return self.finish is not None


@dataclass(frozen=True, slots=True)
class Conversation:
    """A trajectory as its environment needs it: to answer its last turn, or to rebuild its session.

    Args:
        prompt: prompt token ids.
        metadata: that of its assignment, with its purpose.
        turns: its turns that ended with a question to the environment, in order; the last one may wait for the answer.
        session: the environment's state behind the turn of serial `session_serial`; None if none was saved.
    """

    trajectory: str
    group: int
    prompt: tuple[int, ...]
    metadata: Mapping[str, object]
    turns: tuple[Turn, ...]
    session: bytes | None = None
    session_serial: int | None = None


@dataclass(frozen=True, slots=True)
class Recovery:
    """The trajectories in the store after a crash.

    Args:
        held: finished trajectories that are not consumed or discarded, with their reward or None.
        partial: unfinished trajectories, with their version and number of response tokens; `TrajectoryStore.assignments` has
            with what `begin` takes them up.
    """

    held: dict[str, float | None]
    partial: dict[str, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Trainable:
    """A trajectory in the experience buffer that may be trained on now.

    Args:
        oldest_version: the oldest version in it.
        completed_version: the trainer's version when generation finished.
        tokens: number of response tokens.
    """

    trajectory: str
    group: int
    oldest_version: int
    completed_version: int
    reward: float
    tokens: int


@dataclass(frozen=True, slots=True)
class ConsumedTrajectory:
    """A trajectory that was trained on, for reports.

    Args:
        oldest_version: the oldest version in it.
        completed_version: the trainer's version when generation finished; minus `oldest_version`, its generation staleness.
        consumed_version: the version that training on it made; before, the trainer was one version below.
        tokens: number of response tokens.
        generated: those of them that the model generated; environments answered the others.
    """

    trajectory: str
    group: int
    oldest_version: int
    completed_version: int
    consumed_version: int
    reward: float | None
    tokens: int
    generated: int


@dataclass(frozen=True, slots=True)
class StoreStats:
    """Counts since the store was opened.

    Args:
        begun: new trajectories.
        resumed: trajectories begun again while partial.
        revived: trajectories begun again after they had been discarded.
        kept_tokens: response tokens returned for resumption.
        dropped_tokens: response tokens dropped, since another version produced them or the trajectory was revived.
        deltas: deltas stored.
        tokens: response tokens stored, without observations.
        observations: turns of which an environment's answer was stored.
        resent: deltas sent again although they were stored already.
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
    observations: int = 0
    resent: int = 0
    refused: int = 0
    finished: int = 0
    consumed: int = 0
    rolled_back: int = 0
