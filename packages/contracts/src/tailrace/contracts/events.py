"""Events: what an executor tells the controller. Metadata only; an event that answers a command names its number."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from tailrace.contracts.record import record
from tailrace.contracts.trajectory import FinishReason


@record
class Snapshot:
    """The load of a replica at a moment.

    Args:
        kv: share of the KV cache in use, 0 to 1.
        running: trajectories in the decode batch.
        waiting: trajectories queued inside the engine.
        finished: trajectories finished since the replica started.
        version: the version that it serves, None before its first complete pull.
        last_seq: number of the last command that the replica has carried out.
        tokens_per_s: response tokens generated per second since the last snapshot.
        kv_capacity_tokens: tokens that its KV cache holds; 0 if the engine does not say.
        in_environment: trajectories that neither run nor queue, since a tool or an environment works on their next turn.
        steps: engine steps since the replica started.
    """

    replica: str
    kv: float
    running: int
    waiting: int
    finished: int
    version: int | None
    last_seq: int
    tokens_per_s: float = 0.0
    kv_capacity_tokens: int = 0
    in_environment: int = 0
    steps: int = 0


@record
class Finished:
    """A trajectory is complete and its tokens are in the trajectory store."""

    replica: str
    trajectory: str
    tokens: int
    reason: FinishReason = FinishReason.STOP
    answers: int | None = None


@record
class Interrupted:
    """A trajectory stopped on request. Its tokens are in the partial-response pool."""

    replica: str
    trajectory: str
    tokens_kept: int
    answers: int | None = None


@dataclass(frozen=True, slots=True)
class Pulled:
    """A replica serves a version, whose weights it holds completely."""

    replica: str
    version: int
    answers: int | None = None


@dataclass(frozen=True, slots=True)
class PullFailed:
    """A replica could not load a version: no relay and no checkpoint holds it any more, or it arrived damaged."""

    replica: str
    version: int
    reason: str
    answers: int | None = None


@dataclass(frozen=True, slots=True)
class Published:
    """A version is complete on a relay and may be pulled."""

    version: int
    answers: int | None = None


@dataclass(frozen=True, slots=True)
class Durable:
    """The checkpoint of a version survives a crash."""

    version: int
    answers: int | None = None


@record
class Scored:
    """A trajectory has its reward."""

    trajectory: str
    reward: float
    answers: int | None = None


@dataclass(frozen=True, slots=True)
class ScoringFailed:
    """The verifier broke. That is an infrastructure failure, never a reward of zero."""

    trajectory: str
    reason: str
    answers: int | None = None


@dataclass(frozen=True, slots=True)
class Accumulated:
    """The trainer has trained on a part of the batch that makes `version`."""

    version: int
    trajectories: tuple[str, ...]
    metrics: dict[str, float] = field(default_factory=dict)
    answers: int | None = None


@dataclass(frozen=True, slots=True)
class Stepped:
    """The trainer has consumed a batch and holds `version`."""

    version: int
    metrics: dict[str, float] = field(default_factory=dict)
    answers: int | None = None


@record
class Discarded:
    """The store has dropped what an `Abort` named."""

    answers: int


class Cause(StrEnum):
    """What brought a member down.

    DIED: its process is gone.
    SILENT: it answered nothing for too long, or did not carry out a command in time.
    BROKE: a call of it raised.
    STILL: it answered, but did no work for too long.
    CHECKPOINT: the checkpoint that it was to start from cannot be used.
    STOPPED: it was told to.
    """

    DIED = "died"
    SILENT = "silent"
    BROKE = "broke"
    STILL = "still"
    CHECKPOINT = "checkpoint"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class Down:
    """A member of a role is gone.

    Args:
        reason: one line for a person.
    """

    role: str
    id: str
    reason: str
    cause: Cause = Cause.DIED


@dataclass(frozen=True, slots=True)
class Up:
    """A member of a role serves.

    Args:
        version: for the trainer, the version of the checkpoint that it holds; None for the model that the run began with.
        machine: where it stands, empty if unknown.
        address: where others reach it, for relays.
        held: of the data role: finished trajectories, scored or not, that its store holds and that were not consumed.
        partial: of the data role: the version and the response tokens that its store keeps of unfinished trajectories.
    """

    role: str
    id: str
    version: int | None = None
    machine: str = ""
    address: str = ""
    held: tuple[str, ...] = ()
    partial: dict[str, tuple[int, int]] = field(default_factory=dict)
    answers: int | None = None


@dataclass(frozen=True, slots=True)
class Suspect:
    """A member of a role has been silent for longer than it should."""

    role: str
    id: str
    silent_s: float


@dataclass(frozen=True, slots=True)
class Tick:
    """Time passes. Periodic decisions hang on it."""


@record
class Activity:
    """What a member is doing, where its answers alone do not show it.

    A replica reports it while its engine stands still with work in flight, the trainer when its phase changes. Waiting for an
    environment is not standing still.

    Args:
        phase: what it is at: "generating", "pulling"; "training", "publishing", "saving", "idle".
        progress: engine steps of a replica, finished commands of the trainer, since it started.
        still_s: seconds since the progress last changed while there was work.
        slowest_s: seconds that its slowest step in this phase took so far.
    """

    role: str
    id: str
    phase: str
    progress: int = 0
    still_s: float = 0.0
    slowest_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Resumed:
    """The run goes on after its driver died: every role is fresh, and training state is that of a checkpoint.

    Args:
        checkpoints: versions of the checkpoints that exist and look whole.
    """

    checkpoints: tuple[int, ...] = ()


Event = (
    Snapshot
    | Finished
    | Interrupted
    | Pulled
    | PullFailed
    | Published
    | Durable
    | Scored
    | ScoringFailed
    | Accumulated
    | Stepped
    | Discarded
    | Down
    | Up
    | Suspect
    | Activity
    | Tick
    | Resumed
)
