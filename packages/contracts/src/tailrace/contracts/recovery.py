"""The input and the answers of recovery and provisioning: members, machines, failures and actions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from enum import StrEnum

from tailrace.contracts.events import Cause
from tailrace.contracts.reasons import Reason, Why
from tailrace.contracts.record import record
from tailrace.contracts.views import Progress, ReplicaView, RoundRecord, RoundView


class Health(StrEnum):
    """Whether a member can be given work."""

    STARTING = "starting"
    UP = "up"
    STOPPING = "stopping"
    RESIZING = "resizing"
    DOWN = "down"


@record
class MemberView:
    """A member of a role, as policies see it.

    Args:
        machine: the machine it runs on, empty while unknown.
        phase: the phase that it last reported (`Activity`); empty if none.
        in_flight: for a replica, the number of trajectories that it holds.
        devices: names of the devices that it stands on; empty if the host does not say.
        tp: for a replica, the devices that its engine spans (tensor parallelism).
        pool: for a replica, the pool of equal replicas that it belongs to; empty where all are alike.
        site: its datacenter; empty for the trainer's.
        hybrid: whether it is a replica on devices of the trainer.
    """

    role: str
    id: str
    health: Health
    machine: str = ""
    phase: str = ""
    in_flight: int = 0
    devices: tuple[str, ...] = ()
    tp: int = 1
    pool: str = ""
    site: str = ""
    hybrid: bool = False


@record
class MachineView:
    """A machine on which members run.

    Args:
        site: its datacenter, empty where there is only one.
        device: kind of its devices, empty if unknown.
        healthy: whether the run may still use it.
    """

    id: str
    site: str = ""
    device: str = ""
    healthy: bool = True


@record
class IterationRecord:
    """An iteration that is over: from the end of one training step to the end of the next.

    Args:
        version: the version that its step made.
        seconds: how long it took.
        generation_s: seconds of it in which the replica with most to do had trajectories of training.
        training_s: seconds of it in which the trainer, or a cell of it, computed.
        replicas: replicas that served all the while; 0 if they were not the same ones throughout, or the trainer went down.
        trajectories: trajectories of training that finished generating in it.
    """

    version: int
    seconds: float
    generation_s: float
    training_s: float
    replicas: int
    trajectories: int


@record
class BatchView:
    """The batch that the trainer computes or gets next, for a policy whose hybrids yield to the trainer (`yields_from`).

    Args:
        size: groups that it has.
        done: groups of it that are complete, `size` at most; those that were given to the trainer already count.
        ready: whether the trainer could be given all of it now.
        trains: whether the trainer, or a cell of it, computes.
        away: whether the trainer is not up.
    """

    size: int
    done: int
    ready: bool = False
    trains: bool = False
    away: bool = False


@record
class LoanRecord:
    """A loan of a replica's devices that is over.

    Args:
        version: the trainer's when it was decided.
        lend_s: seconds from the decision until the replica had left its devices: its work went elsewhere, and its engine slept.
        return_s: seconds from the end of what the cells there computed until the replica's engine was awake; in between the
            cells left.
    """

    version: int
    lend_s: float
    return_s: float


@record
class FleetView:
    """Which member runs where, and how far the run is.

    Args:
        machines: machines on which a member has run, by id.
        members: all members that are not gone, in the order in which they were first started.
        progress: how far the run is.
        now_s: seconds on the run's clock.
        training_s: mean seconds of the last training steps, 0 before the first.
        step_s: mean seconds between the ends of the last training steps, 0 before the second.
        round: the round that is being generated; None between rounds, and where there are none.
        rounds: the rounds that are over, oldest first; only as many as policies look at (64).
        loads: the replicas that are up, as the other policies see them.
        lengths: response tokens of the last trajectories that finished (4,096 at most), in order of their end.
        lent: replicas whose devices are lent to cells of the trainer, or about to be, or not returned yet. They are not among
            `loads`.
        iterations: the last iterations, oldest first, for a policy that asks for them (`watched_iterations`). The first of a
            run, and the first after the driver died, are not among them.
        batch: the batch that is next, for a policy whose hybrids yield to the trainer; None after the last one, and for others.
        round_s: seconds since the open round began.
        gradients_s: mean seconds that the gradients of one of the last batches, and their step, took all of the trainer's
            devices, also where cells added some of them alone; 0 before the first.
        loans: the last loans that are over, oldest first (16 at most).
    """

    machines: Mapping[str, MachineView]
    members: Sequence[MemberView]
    progress: Progress
    now_s: float = 0.0
    training_s: float = 0.0
    step_s: float = 0.0
    round: RoundView | None = None
    rounds: Sequence[RoundRecord] = ()
    loads: Sequence[ReplicaView] = ()
    lengths: Sequence[int] = ()
    lent: Sequence[str] = ()
    iterations: Sequence[IterationRecord] = ()
    batch: BatchView | None = None
    round_s: float = 0.0
    gradients_s: float = 0.0
    loans: Sequence[LoanRecord] = ()

    def of(self, role: str) -> list[MemberView]:
        """The members of a role."""
        return [member for member in self.members if member.role == role]


@record
class Failure:
    """A member went down. All but who it is is given by keyword.

    Args:
        role: its role.
        member: its id, which events call `id`.
        cause: what became of it.
        reason: one line for people to read.
        machine: where it stood when it failed, if its machine is known.
        phase: the phase that it last reported; empty if none.
        step: batches trained on so far.
        failures: failures of this member since it last did work, including this one, whatever time lies between them. For the
            trainer only a step that it had not made before is work.
        role_failures: failures of all members of its role in the policy's window, including this one.
        machine_failures: failures of all members on its machine in the window, including this one; 0 if unknown.
        first_iteration: whether no batch has been trained on since the run, or all of it, began.
        step_failures: failures of its role in the present step, this one included unless a start failed. A step that is begun
            again from a checkpoint is the same step.
        failed_starts: starts of this member that failed one after the other, this one included.
        task_restarts: how often the whole task has restarted at a step that is not done yet. Steps before it that are made
            again change nothing.
        starting: whether it failed while it started, so that a start or restart failed.
        others: members of the role that are not down.
        hybrid: whether it is a replica on devices of the trainer.
        standbys: machines of replicas that the trainer could take now; 0 unless it is the trainer that lost its machine.
        stood: the machine where it stood last, or was told to start; empty if unknown.
        moved: failures among `failures` after which it was given another machine; 0 if it was given none since it last worked.
        elsewhere: other machines on which what stands on its machine could start; 0 if its machine is unknown.
        beside_store: whether the data role stands on its machine, which is then not given up for a member's sake.
    """

    role: str
    member: str
    _: KW_ONLY
    cause: Cause
    reason: str = ""
    machine: str = ""
    phase: str = ""
    step: int = 0
    failures: int = 1
    role_failures: int = 1
    machine_failures: int = 0
    first_iteration: bool = False
    starting: bool = False
    others: int = 0
    step_failures: int = 1
    failed_starts: int = 0
    task_restarts: int = 0
    hybrid: bool = False
    standbys: int = 0
    stood: str = ""
    moved: int = 0
    elsewhere: int = 0
    beside_store: bool = False


class RecoveryAction(StrEnum):
    """What becomes of a member that is down.

    RESTART: a fresh member takes its place.
    RESTART_TRAINER: a fresh member takes its place, and the fault is one of the trainer too: for a hybrid alone.
    REPLACE: a fresh member takes its place, on another machine if there is one. Its machine stays in use.
    EVICT: it is not restarted, and others do its work, or nobody does a ranker's.
    EVICT_MACHINE: its machine is no longer used; all members there are replaced elsewhere.
    STANDBY: the trainer's machine is no longer used, as with EVICT_MACHINE, and the trainer takes that of a replica. What the
        replica had goes on elsewhere, and so does the replica, as a fresh one.
    RESTART_TASK: every member starts anew, and the run goes on from the trainer's checkpoint with what the store holds.
    START_OVER: the same, but all that was generated for batches after that checkpoint is lost, and generated again.
    FAIL: the run ends as failed.
    """

    RESTART = "restart"
    RESTART_TRAINER = "restart-trainer"
    REPLACE = "replace"
    EVICT = "evict"
    EVICT_MACHINE = "evict-machine"
    STANDBY = "standby"
    RESTART_TASK = "restart-task"
    START_OVER = "start-over"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class StartReplica:
    """Start one more replica, once the devices that the same plan frees are free.

    Args:
        tp: devices that its engine spans (tensor parallelism); None: as many as those of the run's start.
        pool: the pool that it joins; None: the first that has fewer replicas than the run was given for it, or else the last.
    """

    reason: Reason = field(default_factory=lambda: Reason(Why.PLANNED))
    tp: int | None = None
    pool: str | None = None


@dataclass(frozen=True, slots=True)
class StopReplica:
    """Stop one replica, whose devices are not lent. Its trajectories go back to the pool with their tokens."""

    replica: str
    reason: Reason = field(default_factory=lambda: Reason(Why.PLANNED))


@dataclass(frozen=True, slots=True)
class ResizeReplica:
    """Let a replica's engine span `tp` devices, a power of two. It starts anew; its trajectories go back to the pool.

    Where it grows, it does so once every replica that is stopping is gone, for it may take their devices. While the devices of
    any replica are lent, none is resized: the trainer's cells would lose their place. So a `ReturnReplica` comes first, and the
    resize once `FleetView.lent` is empty.
    """

    replica: str
    tp: int
    reason: Reason = field(default_factory=lambda: Reason(Why.PLANNED))


@dataclass(frozen=True, slots=True)
class LendReplica:
    """Lend a replica's devices to the trainer's cells that stand on them.

    Its trajectories go back to the pool with their tokens. A cell adds gradients once all replicas on its devices are lent;
    where hybrids yield (`yields_from`), the trainer steps once all of them are. None is lent while any replica is resized.
    """

    replica: str
    reason: Reason = field(default_factory=lambda: Reason(Why.PLANNED))


@dataclass(frozen=True, slots=True)
class ReturnReplica:
    """Take a replica's devices back, once the cells there have ended what they compute."""

    replica: str
    reason: Reason = field(default_factory=lambda: Reason(Why.PLANNED))


FleetAction = StartReplica | StopReplica | ResizeReplica | LendReplica | ReturnReplica
"""What a provisioning policy may ask for."""
