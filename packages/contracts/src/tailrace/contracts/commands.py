"""Commands: what the controller asks an executor to do. Metadata only; each carries a sequence number.

The executor answers each command with an event that names the number, or lets it be superseded by a `Down`.

`Route`, `Interrupt` and `Pull` may also carry `after`, the number of the previous one to the same incarnation of the replica,
0 for the first. A replica carries such a command out once, and only when it has carried out the one before: so a transport
may delay, reorder and repeat them (SF-9). Without it they are carried out as they come.
"""

from __future__ import annotations

from dataclasses import dataclass

from tailrace.contracts.trajectory import TrajectoryRef


@dataclass(frozen=True, slots=True)
class Route:
    """Generate these trajectories on a replica, resuming those that have tokens. Answered by `Finished` for each."""

    seq: int
    replica: str
    trajectories: tuple[TrajectoryRef, ...]
    after: int | None = None


@dataclass(frozen=True, slots=True)
class Interrupt:
    """Stop these trajectories on a replica and keep their tokens. Answered by one `Interrupted` (or `Finished`) each."""

    seq: int
    replica: str
    trajectories: tuple[str, ...]
    after: int | None = None


@dataclass(frozen=True, slots=True)
class Abort:
    """Drop these trajectories wherever they are. Not answered."""

    seq: int
    trajectories: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Pull:
    """Load a complete, checksummed weight version into a replica. Answered by `Pulled`."""

    seq: int
    replica: str
    version: int
    after: int | None = None


@dataclass(frozen=True, slots=True)
class Publish:
    """Hand the trainer's weights to the relays as a version. Answered by `Published`."""

    seq: int
    version: int


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Save the trainer's state as a version, in the background. Answered by `Durable`.

    Args:
        keep: versions whose checkpoints must survive, since trajectories in flight may still need their weights (LAM-9).
    """

    seq: int
    version: int
    keep: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Score:
    """Score finished trajectories. Answered by `Scored` or `ScoringFailed` for each."""

    seq: int
    trajectories: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Accumulate:
    """Train on complete groups of the batch that makes `version` before the batch is complete. Answered by `Accumulated`.

    One optimizer step. The batch ends with a `Step` of the same version, whose mini-batches are what remains of it. A trainer
    that goes down before has forgotten what it accumulated.
    """

    seq: int
    version: int
    trajectories: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Step:
    """Consume a batch and make `version`. Each mini-batch is one optimizer step. Answered by `Stepped`.

    What was accumulated for the same version is part of the batch, and is not named again.
    """

    seq: int
    version: int
    mini_batches: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Start:
    """Bring up a new member of a role. Answered by `Up`."""

    seq: int
    role: str
    id: str


@dataclass(frozen=True, slots=True)
class Stop:
    """Shut a member of a role down."""

    seq: int
    role: str
    id: str


@dataclass(frozen=True, slots=True)
class Restart:
    """Replace a member that is down by a fresh one. Answered by `Up`.

    Args:
        version: for the trainer, the durable checkpoint that it resumes from.
    """

    seq: int
    role: str
    id: str
    version: int | None = None


@dataclass(frozen=True, slots=True)
class Finish:
    """The run is complete: the executor drains and stops."""

    seq: int


@dataclass(frozen=True, slots=True)
class Fail:
    """The run cannot go on. The reason is for a person."""

    seq: int
    reason: str


Command = (
    Route
    | Interrupt
    | Abort
    | Pull
    | Publish
    | Checkpoint
    | Score
    | Accumulate
    | Step
    | Start
    | Stop
    | Restart
    | Finish
    | Fail
)
