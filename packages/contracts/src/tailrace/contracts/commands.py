"""Commands: what the controller asks an executor to do. Metadata only; each carries a sequence number.

A command goes to one member, except `Abort`, which goes to the data role, the scorer and the replicas that it names. The
member answers with an event that names the command's number, except to a `Close`. If the member goes down instead, its `Down`
is the answer.

`Route`, `Interrupt`, `Pull`, `Lend` and `Return` may also carry `after`: the number of the previous such command to the same
incarnation of the replica, 0 for the first. The replica then carries out each command once and in that order, even if the
transport delays, reorders or repeats them. Without `after`, it carries out commands as they arrive.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tailrace.contracts.reasons import CHOSEN, Reason, Why
from tailrace.contracts.trajectory import TrajectoryRef

_POLICY = Reason(Why.POLICY)


@dataclass(frozen=True, slots=True)
class Route:
    """Generate these trajectories on a replica, resuming those that have tokens.

    Answered by `Finished` for each, `TurnEnded` where an environment comes next, or `Refused`.

    Args:
        reasons: one for each trajectory, or a single one for all.
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
    """Stop these trajectories on a replica and keep their tokens.

    Answered by one `Interrupted` each, or by `Finished` or `TurnEnded` where that came first.
    """

    seq: int
    replica: str
    trajectories: tuple[str, ...]
    after: int | None = None
    reason: Reason = _POLICY


@dataclass(frozen=True, slots=True)
class Abort:
    """Drop these trajectories: the store deletes their tokens, generation and scoring stop. Answered by `Discarded`.

    A trajectory that starts again is routed only after that answer; otherwise the store could delete its new tokens.

    Args:
        replicas: replicas that may hold one of the trajectories.
    """

    seq: int
    trajectories: tuple[str, ...]
    replicas: tuple[str, ...] = ()
    reason: Reason = _POLICY


@dataclass(frozen=True, slots=True)
class Pull:
    """Load a complete, checksummed weight version into a replica. Answered by `Pulled` or `PullFailed`.

    Args:
        sources: addresses of the live relays, best first. If one breaks off, the pull continues from the next.
    """

    seq: int
    replica: str
    version: int
    after: int | None = None
    sources: tuple[str, ...] = ()
    reason: Reason = _POLICY


@dataclass(frozen=True, slots=True)
class Lend:
    """Leave the devices to the trainer's cells there until `Return`. The replica holds nothing. Answered by `Lent`.

    Args:
        cells: the cells of the trainer that stand on the same devices, wholly or in part.
    """

    seq: int
    replica: str
    cells: tuple[int, ...]
    after: int | None = None
    reason: Reason = _POLICY


@dataclass(frozen=True, slots=True)
class Return:
    """Take the devices back that were lent; trajectories may be routed again. Answered by `Returned`.

    The trainer's cells there have moved away what they had on them (`Offload`).
    """

    seq: int
    replica: str
    after: int | None = None
    reason: Reason = _POLICY


@dataclass(frozen=True, slots=True)
class Publish:
    """Hand the trainer's weights to the relays as a version. Answered by `Published`.

    The trainer may be asked again for a version that it has handed over before; it then goes to the relays named now.

    Args:
        relays: addresses of the live relays, by id.
        sites: the site of each relay, by id, that is not at the trainer's. One relay of each site receives a version over
            the slow link, and passes it on there (StreamRL, section 6).
        sealed: whether nobody may see the version before a `Reveal`, since its checkpoint is not durable. It travels to the
            relays meanwhile, and `Published` follows the `Reveal`.
    """

    seq: int
    version: int
    relays: dict[str, str] = field(default_factory=dict)
    sites: dict[str, str] = field(default_factory=dict)
    sealed: bool = False


@dataclass(frozen=True, slots=True)
class Reveal:
    """Let a version be seen that was handed over sealed: its checkpoint is durable. Answered by `Published`.

    The trainer carries it out at once, whatever it is doing. A later `Publish` of the version is not sealed, so nothing is lost
    with a relay that dies before it was told.
    """

    seq: int
    version: int


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Save the trainer's state as a version, in the background. Answered by `Durable`, if it takes long after `Saving`.

    Args:
        keep: older versions whose checkpoints are kept once this one is durable; all other older ones are deleted. They are
            the fallbacks, those still being saved, and versions that trajectories in flight may still need.
        full: whether the optimizer's state is saved too. The trainer cannot go on from weights alone.
    """

    seq: int
    version: int
    keep: tuple[int, ...] = ()
    full: bool = True


@dataclass(frozen=True, slots=True)
class Score:
    """Score finished trajectories. Answered by `Scored` or `ScoringFailed` for each."""

    seq: int
    trajectories: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Call:
    """Let an environment answer the last turn of these trajectories. Answered by `Turned` or `CallFailed` for each.

    Args:
        environment: the member of the environment role.
        trajectories: trajectories of which the store has a turn that is not answered. A call may be repeated: the store keeps
            the first observation of a turn.
    """

    seq: int
    environment: str
    trajectories: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Close:
    """End the sessions of these trajectories and drop their calls. It has no answer; a session that is over is no error.

    Args:
        environment: the member of the environment role that has them.
    """

    seq: int
    environment: str
    trajectories: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Predict:
    """Predict the lengths of the responses to prompts of the stream. Answered by `Predicted` or `PredictionFailed` for each.

    Nothing waits for the answers but the deadline of the ranker.
    """

    seq: int
    prompts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Measure:
    """Say how many tokens prompts of the stream have, as an engine gets them. Answered by `Measured`.

    Nothing waits for the answer but the deadline of the data role.
    """

    seq: int
    prompts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Accumulate:
    """Train on complete groups of the batch that makes `version` before the batch is complete. Answered by `Accumulated`.

    The batch ends with a `Step` of the same version, whose mini-batches hold the remaining groups.
    A trainer that goes down before that `Step` loses what it accumulated.

    Args:
        update: whether this is an optimizer step of its own. Otherwise its gradients are only added up, and the `Step` scales
            and applies the sum of the whole batch.
        cell: the cell of the trainer that computes the gradients alone, without the others; None: all of it.
    """

    seq: int
    version: int
    trajectories: tuple[str, ...]
    update: bool = True
    cell: int | None = None


@dataclass(frozen=True, slots=True)
class Offload:
    """Move what a cell of the trainer has on its devices into host memory, since replicas use them. Answered by `Offloaded`.

    The trainer brings back what it needs by itself, with the next `Accumulate` of this cell or the next `Step`.

    Args:
        cell: the cell.
    """

    seq: int
    cell: int


@dataclass(frozen=True, slots=True)
class Step:
    """Train on a batch and make `version`. Each mini-batch is one optimizer step. Answered by `Stepped`.

    Groups that were accumulated for the same version belong to the batch too and are not listed again. If only gradients were
    accumulated, there is at most one mini-batch, and the step is one optimizer step over the whole batch.

    Args:
        round: the kind of round whose groups these are, such as ``"short"``; empty where batching knows no rounds.
    """

    seq: int
    version: int
    mini_batches: tuple[tuple[str, ...], ...]
    round: str = ""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a member may stand.

    Args:
        index: number of the machine at its site, for a role with one member on each machine; None leaves the choice to the
            host.
        avoid: machines that must not be used, since the run has given them up.
        site: the site (datacenter) of the machine; empty for the trainer's.
        pool: for a replica, the pool whose engine options it has; empty where all replicas are alike.
        check: whether the machine must pass its checks before the member starts there.
        machine: the machine where it stands, of those that the run has names for; if it is gone, the host takes another one.
            Empty leaves the choice to the host.
    """

    index: int | None = None
    avoid: tuple[str, ...] = ()
    site: str = ""
    pool: str = ""
    check: bool = False
    machine: str = ""


@dataclass(frozen=True, slots=True)
class Start:
    """Bring up a new member of a role. Answered by `Up`.

    Args:
        tp: for a replica, the devices that its engine spans (tensor parallelism); None: as the deployment says.
    """

    seq: int
    role: str
    id: str
    place: Place = field(default_factory=Place)
    reason: Reason = _POLICY
    tp: int | None = None


@dataclass(frozen=True, slots=True)
class Stop:
    """Let a member of a role clean up, then end it. Answered by `Down`."""

    seq: int
    role: str
    id: str
    reason: Reason = _POLICY


@dataclass(frozen=True, slots=True)
class HeldWeights:
    """Published weights that others hold, for a trainer whose newest checkpoint is older.

    Args:
        version: their version.
        steps: batches that they were trained on since the checkpoint.
        sources: addresses of the relays and replicas that have them, best first.
    """

    version: int
    steps: int
    sources: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Restart:
    """Replace a member by a fresh one; if the old process still lives, it is ended. Answered by `Up`.

    Args:
        version: for the trainer, the checkpoint to resume from; None for the model that the run began with. For the data
            role, the version from which the trainer continues if the whole run restarts; None otherwise.
        tp: as in `Start`.
        weights: for the trainer, newer weights to take in place of the checkpoint's; None: it takes those.
    """

    seq: int
    role: str
    id: str
    version: int | None = None
    place: Place = field(default_factory=Place)
    reason: Reason = _POLICY
    tp: int | None = None
    weights: HeldWeights | None = None


@dataclass(frozen=True, slots=True)
class Resize:
    """Replace a replica, which holds nothing any more, by a fresh one on `tp` devices. Answered by `Up`.

    The old process ends first, so that its devices are free. Like any fresh replica, it serves nothing before its first pull.
    """

    seq: int
    replica: str
    tp: int
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
    | Lend
    | Return
    | Publish
    | Reveal
    | Checkpoint
    | Score
    | Call
    | Close
    | Predict
    | Measure
    | Accumulate
    | Offload
    | Step
    | Start
    | Stop
    | Restart
    | Resize
    | Finish
    | Fail
)
