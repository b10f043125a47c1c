"""Commands: what the controller asks an executor to do. Metadata only; each carries a sequence number.

A command goes to one member, but for `Abort`, which goes to the data role, the scorer and the replicas that it names. The
member answers with an event that names the number, or its `Down` takes the answer's place.

`Route`, `Interrupt` and `Pull` may also carry `after`, the number of the previous one to the same incarnation of the replica,
0 for the first. A replica carries such a command out once, and only when it has carried out the one before: so a transport
may delay, reorder and repeat them. Without it they are carried out as they come.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tailrace.contracts.reasons import CHOSEN, Reason, Why
from tailrace.contracts.trajectory import TrajectoryRef

_POLICY = Reason(Why.POLICY)


@dataclass(frozen=True, slots=True)
class Route:
    """Generate these trajectories on a replica, resuming those that have tokens. Answered by `Finished` for each.

    Args:
        reasons: one for each trajectory, or a single one that is true of all.
    """

    seq: int
    replica: str
    trajectories: tuple[TrajectoryRef, ...]
    after: int | None = None
    reasons: tuple[Reason, ...] = (CHOSEN,)

    def reason(self, index: int) -> Reason:
        """Why the trajectory at an index is routed here."""
        return self.reasons[index if len(self.reasons) > 1 else 0]


@dataclass(frozen=True, slots=True)
class Interrupt:
    """Stop these trajectories on a replica and keep their tokens. Answered by one `Interrupted` (or `Finished`) each."""

    seq: int
    replica: str
    trajectories: tuple[str, ...]
    after: int | None = None
    reason: Reason = _POLICY


@dataclass(frozen=True, slots=True)
class Abort:
    """Drop these trajectories: their tokens leave the store, nobody generates or scores them. Answered by `Discarded`.

    What begins anew is routed only after that answer: otherwise the store could drop what was just begun.

    Args:
        replicas: those that may hold one of them.
    """

    seq: int
    trajectories: tuple[str, ...]
    replicas: tuple[str, ...] = ()
    reason: Reason = _POLICY


@dataclass(frozen=True, slots=True)
class Pull:
    """Load a complete, checksummed weight version into a replica. Answered by `Pulled` or `PullFailed`.

    Args:
        sources: addresses of the relays that live, best first. A pull that one of them breaks off goes on with the next.
    """

    seq: int
    replica: str
    version: int
    after: int | None = None
    sources: tuple[str, ...] = ()
    reason: Reason = _POLICY


@dataclass(frozen=True, slots=True)
class Publish:
    """Hand the trainer's weights to the relays as a version. Answered by `Published`.

    A version that was handed over before is offered again, to the relays that there are now.

    Args:
        relays: addresses of the relays that live, by id.
    """

    seq: int
    version: int
    relays: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Save the trainer's state as a version, in the background. Answered by `Durable`.

    Args:
        keep: versions whose checkpoints stay once this one is durable; all other older ones go. Those are the ones to fall
            back to, those under way, and versions that trajectories in flight may still need.
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
class Place:
    """Where a member may stand.

    Args:
        index: counts the machines, for members of which each machine has one; None leaves the choice to the host.
        avoid: machines that are given up.
    """

    index: int | None = None
    avoid: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Start:
    """Bring up a new member of a role. Answered by `Up`."""

    seq: int
    role: str
    id: str
    place: Place = field(default_factory=Place)
    reason: Reason = _POLICY


@dataclass(frozen=True, slots=True)
class Stop:
    """Let a member of a role tidy up, then end it. Answered by `Down`."""

    seq: int
    role: str
    id: str
    reason: Reason = _POLICY


@dataclass(frozen=True, slots=True)
class Restart:
    """Replace a member by a fresh one; what is left of the old one is ended. Answered by `Up`.

    Args:
        version: for the trainer, the checkpoint that it resumes from, None for the model that the run began with; for the data
            role, the version that the trainer goes on from where the whole run starts again, None otherwise.
    """

    seq: int
    role: str
    id: str
    version: int | None = None
    place: Place = field(default_factory=Place)
    reason: Reason = _POLICY


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
