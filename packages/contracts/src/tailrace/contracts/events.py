"""Events: what an executor tells the controller. Metadata only. `answers` is the number of the command that it answers.

A trajectory of several turns goes back and forth between its replica and its environment:

    replica ──TurnEnded──► controller ──Call──► environment ──Turned──► controller ──Route──► the same replica, if it can
                                                   └──CallFailed──► its group fails by name, or the trajectory begins anew

What the events name is durable: the store has the tokens of the turn, and then those of the observation.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from tailrace.contracts.errors import shown
from tailrace.contracts.record import record
from tailrace.contracts.trajectory import FinishReason


class SessionOrigin(StrEnum):
    """Where the environment has the session of a trajectory from that it was asked for.

    HELD: it had it, or this was its first turn.
    RESTORED: its member was gone, and another restored it from a snapshot.
    REPLAYED: its member was gone, and another replayed the turns of the store; what it observed was the same.
    """

    HELD = "held"
    RESTORED = "restored"
    REPLAYED = "replayed"


@record
class TurnEnded:
    """A turn of a trajectory is complete and the trajectory store has its tokens; an environment answers it next.

    Args:
        tokens: all response tokens so far, what environments answered before included.
    """

    replica: str
    trajectory: str
    tokens: int
    answers: int | None = None


@record
class Turned:
    """An environment has answered a turn, and the trajectory store has its observation.

    Args:
        turn: number of the turn that was answered, from 1.
        tokens: all response tokens so far, this observation included.
        done: whether the environment has ended the trajectory, which is then complete in the store. Its session is over.
        seconds: wall time of the environment's step, without its time in a queue.
        session: where the environment had the session from.
        reason: why the trajectory is complete, if it is: ``LENGTH`` where a limit on tokens or turns left no room for another
            turn. Logs from before there was this field have ``STOP`` for either.
    """

    trajectory: str
    turn: int
    tokens: int
    done: bool = False
    seconds: float = 0.0
    answers: int | None = None
    session: SessionOrigin = SessionOrigin.HELD
    reason: FinishReason = FinishReason.STOP


@dataclass(frozen=True, slots=True)
class CallFailed:
    """An environment gave no answer that can be used, or none in time. That is never a reward of zero. Its session is over.

    Args:
        reason: what was found, in words.
        lost: whether only the session is lost, with a member that is gone, and cannot be had again: the trajectory begins anew.
            Otherwise its group fails.
    """

    trajectory: str
    reason: str
    answers: int | None = None
    lost: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "reason", shown(self.reason))


@record
class Snapshot:
    """The load of a replica at a moment.

    Args:
        kv: share of the KV cache in use, 0 to 1.
        running: trajectories in the decode batch.
        waiting: trajectories queued inside the engine.
        finished: trajectories finished since the replica started.
        version: the version that the replica serves, None before its first complete pull.
        last_seq: number of the last command that the replica has carried out.
        tokens_per_s: response tokens generated per second since the last snapshot.
        kv_capacity_tokens: tokens that its KV cache can hold; 0 if the engine does not say.
        steps: engine steps since the replica started.
        preemptions: times since the replica started that the engine took a trajectory's KV cache away to make room.
        max_running: most trajectories that its engine runs at once; 0 if the engine does not say.
        cached_tokens: tokens since the replica started that its prefix cache had, which need no prefill; 0 if the engine does
            not say.
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
    steps: int = 0
    preemptions: int = 0
    max_running: int = 0
    cached_tokens: int = 0


@record
class Finished:
    """A trajectory is complete and the trajectory store has its tokens. `tokens` counts response tokens."""

    replica: str
    trajectory: str
    tokens: int
    reason: FinishReason = FinishReason.STOP
    answers: int | None = None


@record
class Refused:
    """The engine of a replica did not take a trajectory's request. `reason` is in the engine's words."""

    replica: str
    trajectory: str
    reason: str
    answers: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "reason", shown(self.reason))


@record
class Interrupted:
    """A trajectory stopped on request. Its tokens are in the partial-response pool."""

    replica: str
    trajectory: str
    tokens_kept: int
    answers: int | None = None


@dataclass(frozen=True, slots=True)
class Pulled:
    """A replica serves a version, whose weights it holds completely.

    Args:
        compared: share of the weights' elements whose digest, taken in the engine, is that of the published ones; 0 if none
            were compared.
        source: address that sent the last of the version, which others may now pull from this replica, where replicas pull from
            each other. Empty if it came from its checkpoint.
    """

    replica: str
    version: int
    answers: int | None = None
    compared: float = 0.0
    source: str = ""


@dataclass(frozen=True, slots=True)
class PullFailed:
    """A replica could not load a version: no relay or checkpoint has it any more, or it arrived damaged. It serves nothing.

    Args:
        reason: one line for people to read.
        differs: the parameter that the engine has otherwise than it was published, although it loaded the version; empty if
            that is not so. The replica's engine is not to be trusted any more.
    """

    replica: str
    version: int
    reason: str
    answers: int | None = None
    differs: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "reason", shown(self.reason))


@dataclass(frozen=True, slots=True)
class Lent:
    """A replica has left its devices: what it had generated is in the store, and its engine sleeps.

    Args:
        level: the level at which the engine sleeps; 0: it keeps its memory.
        seconds: that going to sleep took.
        awake_bytes: memory that the replica had before; 0 if its engine does not sleep.
        asleep_bytes: memory that it has now.
    """

    replica: str
    answers: int | None = None
    level: int = 0
    seconds: float = 0.0
    awake_bytes: int = 0
    asleep_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Returned:
    """A replica has its devices again, and its engine is awake. Weights that it dropped come with the next pull.

    Args:
        seconds: that waking up took.
        awake_bytes: memory that the replica has now; 0 if its engine did not sleep.
    """

    replica: str
    answers: int | None = None
    seconds: float = 0.0
    awake_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Published:
    """A version is complete on a relay and may be pulled."""

    version: int
    answers: int | None = None


@dataclass(frozen=True, slots=True)
class Saving:
    """Bytes of a checkpoint under way were written since the last such event. It begins the checkpoint's deadline anew.

    Args:
        nbytes: bytes that its files have by now.
    """

    version: int
    answers: int | None = None
    nbytes: int = 0


@dataclass(frozen=True, slots=True)
class Durable:
    """The checkpoint of a version survives a crash.

    Args:
        full: whether it has the optimizer's state, so that the trainer can go on from it.
        nbytes: bytes of its files; 0 if they were not counted.
    """

    version: int
    answers: int | None = None
    full: bool = True
    nbytes: int = 0


@record
class Scored:
    """A trajectory has its reward.

    Args:
        correct: whether its answer is right, None if the verifier does not say.
        seconds: wall time of scoring it, without its time in a queue.
        over_budget: the limit that the response used up while it was scored, as in "cpu 2 s"; empty if none. Its reward is
            then 0.
    """

    trajectory: str
    reward: float
    answers: int | None = None
    correct: bool | None = None
    seconds: float = 0.0
    over_budget: str = ""


@dataclass(frozen=True, slots=True)
class ScoringFailed:
    """The verifier broke. That is an infrastructure failure, never a reward of zero."""

    trajectory: str
    reason: str
    answers: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "reason", shown(self.reason))


@dataclass(frozen=True, slots=True)
class Rechecked:
    """A response that had used up its timeout was scored again with the largest one, to see whether the timeout was false.

    Its reward stays as it was. `correct` is whether it is right, given that time.
    """

    trajectory: str
    correct: bool


@dataclass(frozen=True, slots=True)
class Accumulated:
    """The trainer, or one cell of it, has trained on a part of the batch that makes `version`."""

    version: int
    trajectories: tuple[str, ...]
    metrics: dict[str, float] = field(default_factory=dict)
    answers: int | None = None
    cell: int | None = None


@dataclass(frozen=True, slots=True)
class Offloaded:
    """A cell of the trainer has left its devices: what it had there is in host memory.

    Args:
        seconds: that moving it took.
        nbytes: bytes that all ranks of the cell moved; 0 on a CPU, whose memory is the host's.
    """

    cell: int
    answers: int | None = None
    seconds: float = 0.0
    nbytes: int = 0


@dataclass(frozen=True, slots=True)
class Stepped:
    """The trainer has consumed a batch and holds `version`."""

    version: int
    metrics: dict[str, float] = field(default_factory=dict)
    answers: int | None = None


@record
class Discarded:
    """The store has dropped what an `Abort` named.

    Args:
        tokens: response tokens that it held of those that had not finished generating; 0 if it does not say.
    """

    answers: int
    tokens: int = 0


@record
class Measured:
    """How many tokens prompts of the stream have, in the order of `prompts`."""

    prompts: tuple[int, ...]
    tokens: tuple[int, ...]
    answers: int | None = None


class Cause(StrEnum):
    """Why a member went down.

    DIED: its process is gone.
    SILENT: it answered nothing for too long, or did not carry out a command in time.
    BROKE: one of its methods raised.
    STILL: it answered, but did no work for too long.
    WEIGHTS: its engine had other weights than were published.
    CHECKPOINT: the checkpoint that it should start from cannot be used.
    STOPPED: it was told to stop.
    MACHINE: its machine is gone, or did not pass the checks before the member should start there.
    """

    DIED = "died"
    SILENT = "silent"
    BROKE = "broke"
    STILL = "still"
    WEIGHTS = "weights"
    CHECKPOINT = "checkpoint"
    STOPPED = "stopped"
    MACHINE = "machine"


@dataclass(frozen=True, slots=True)
class Down:
    """A member of a role is gone.

    Args:
        reason: one line for people to read.
        machine: for the cause `MACHINE`, the machine; otherwise empty.
        room: other machines that have room for all members of the run that stand on its machine; None if the host does not
            know.
    """

    role: str
    id: str
    reason: str
    cause: Cause = Cause.DIED
    machine: str = ""
    room: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "reason", shown(self.reason))


@dataclass(frozen=True, slots=True)
class ProcessSeat:
    """Where a process of a member stands.

    Args:
        machine: the machine's name.
        devices: indices of its devices there, rising; empty if it has none.
        kind: what they are: ``GPU``, or ``core`` where a CPU's cores stand for devices.
        share: of each of them; 1 if it has them for itself.
        mps: whether it computes beside others by NVIDIA's Multi-Process Service, not in turns with them.
    """

    machine: str
    devices: tuple[int, ...] = ()
    kind: str = "GPU"
    share: float = 1.0
    mps: bool = False

    def __str__(self) -> str:
        if not self.devices:
            return f"machine {self.machine}"
        share = f" ({self.share:g} of each{', by MPS' if self.mps else ''})" if self.share < 1 else ""
        return f"{self.kind} {', '.join(map(str, self.devices))} of machine {self.machine}{share}"


@dataclass(frozen=True, slots=True)
class Up:
    """A member of a role is up and serves.

    Args:
        version: for the trainer, the version of the weights that it loaded: those of its checkpoint, or newer ones that it took
            from others (`Restart.weights`); None for the model that the run began with.
        machine: the machine it runs on, empty if unknown.
        address: for a relay, and a replica that offers what it serves, where others reach it.
        held: for the data role, finished trajectories in its store, scored or not, that were not consumed.
        partial: for the data role, unfinished trajectories in its store, each with its version and number of response tokens.
        seats: where each of its processes stands, the trainer's by rank; empty if none of them has devices of its own.
        took: seconds of each stage of its start, of which it knows the length: ``destroy`` (its predecessor), ``place`` (a
            machine and a process on it), ``import`` (the role's code), ``initialise`` (the role), ``load`` (what it serves).
        notes: what it serves otherwise than its settings say, and why, a line each.
    """

    role: str
    id: str
    version: int | None = None
    machine: str = ""
    address: str = ""
    held: tuple[str, ...] = ()
    partial: dict[str, tuple[int, int]] = field(default_factory=dict)
    answers: int | None = None
    took: dict[str, float] = field(default_factory=dict)
    seats: tuple[ProcessSeat, ...] = ()
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "notes", tuple(map(shown, self.notes)))


@dataclass(frozen=True, slots=True)
class Predicted:
    """The length of a prompt's responses is predicted: before the prompt is launched, or late. Nothing waits for it.

    Args:
        prompt: index in the prompt stream.
        tokens: response tokens that half of its trajectories do not exceed, at least 1. It replaces an earlier prediction.
        p90: tokens that nine of ten do not exceed, at least `tokens`; None if that is not predicted.
        mean: tokens on average, at least 1, by which trajectories are ordered; None: by `tokens`.
    """

    prompt: int
    tokens: float
    answers: int | None = None
    p90: float | None = None
    mean: float | None = None


@dataclass(frozen=True, slots=True)
class PredictionFailed:
    """The ranker has no length for a prompt, or one that cannot be. It is asked again once it has learned.

    Args:
        prompt: index in the prompt stream.
        reason: what was found, in words.
    """

    prompt: int
    reason: str
    answers: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "reason", shown(self.reason))


@dataclass(frozen=True, slots=True)
class Silent:
    """A member has answered nothing for so long; told again and again while it lasts, and with 0 once it answers again.

    Whether it counts as down is for the detection policy to say.
    """

    role: str
    id: str
    silent_s: float


@dataclass(frozen=True, slots=True)
class Struck:
    """A fault was injected into a member, in a phase if it has one. What follows has events of its own.

    Args:
        kind: "kill", "hang", "stall" or "raise".
        fault: the fault as it was written.
    """

    role: str
    id: str
    kind: str
    phase: str = ""
    fault: str = ""


@dataclass(frozen=True, slots=True)
class Tick:
    """Sent at regular intervals; periodic decisions are taken then."""


@record
class Activity:
    """What a member is doing, reported where its answers alone do not show it.

    A replica reports it while its engine stands still with work in flight, the trainer when its phase changes and now and then
    as its micro-batches end, the scorer once it has a sandbox, a relay when it holds more or fewer copies of weights. Waiting
    for an environment is not standing still.

    Args:
        phase: for a replica "generating" or "pulling"; for the trainer "training", "stepping" (as training, by a backend that
            does not say which micro-batches are done), "publishing", "saving" or "idle"; for the scorer the name of the
            sandbox in which programs run; for a relay what it holds, in words.
        progress: a replica's engine steps, or the trainer's micro-batches, since it started; a relay's copies of weights.
        still_s: seconds for which it had work and its progress did not change.
        slowest_s: seconds of its slowest step in this phase so far.
        share: of the trainer's command, how much of its micro-batches is done, from 0 to 1; 0 also where it cannot say.
    """

    role: str
    id: str
    phase: str
    progress: int = 0
    still_s: float = 0.0
    slowest_s: float = 0.0
    share: float = 0.0


@dataclass(frozen=True, slots=True)
class Resumed:
    """The run continues after its driver died: every role is new, and the training state comes from a checkpoint.

    Args:
        checkpoints: versions whose checkpoints exist and look complete.
        steps: batches that the run trains on from now on, if that was changed; a finished run may thus go on.
        replicas: number of replicas from now on, if that was changed.
    """

    checkpoints: tuple[int, ...] = ()
    steps: int | None = None
    replicas: int | None = None


@dataclass(frozen=True, slots=True)
class Attached:
    """Another controller took the place of one that died, and attached to the members, which lived on.

    Args:
        epoch: counts the controllers of the run, from 1.
        away_s: seconds since the last instant of the one that died.
    """

    epoch: int
    away_s: float = 0.0


Event = (
    Snapshot
    | Finished
    | TurnEnded
    | Turned
    | CallFailed
    | Refused
    | Interrupted
    | Pulled
    | PullFailed
    | Lent
    | Returned
    | Published
    | Durable
    | Saving
    | Scored
    | ScoringFailed
    | Rechecked
    | Accumulated
    | Offloaded
    | Stepped
    | Discarded
    | Measured
    | Predicted
    | PredictionFailed
    | Down
    | Up
    | Silent
    | Struck
    | Activity
    | Tick
    | Resumed
    | Attached
)
