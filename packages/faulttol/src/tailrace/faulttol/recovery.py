"""Axis recovery: what restarts when a member of a role fails. Entry-point group ``tailrace.recovery``.

Roles: ``replica``, ``relay``, ``scorer``, ``trainer``, ``data``, ``ranker``, ``environment``.

When a restart of the trainer is not enough (the robust trainer workflow of RobustRL, section 5.1.2, Figure 7):

    ITERATING ──fault──► first iteration? ──yes──────────────────► TASK RESTARTS ──restarted──► ITERATING (first iteration)
        ▲                    │ no
        │                second fault in this step? ──yes────────► TASK RESTARTS
        │                    │ no
        └──restarted── TRAINER RESTARTS ◄─ once more ─ restart failed? ──second in a row──► TASK RESTARTS
                                                                                                │ too many without a step
                                                                                                ▼ in between
                                                                                              FAILED

A fault that comes again at once is one of the code or the configuration, which no restart of a role mends: the whole task
restarts, and in the end the run fails. `Troubles` counts, `restarts_task` judges; neither keeps a clock.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from typing import Annotated

from tailrace.contracts import Cause, Failure, RecoveryAction, RecoveryPolicy, Tried
from tailrace.faulttol.errors import RecoveryError


@dataclass(frozen=True, slots=True)
class Trouble:
    """What is known of a failure beside others.

    Args:
        first_iteration: whether no batch has been trained on since the run, or all of it, began.
        step_failures: failures of the role in the present step, this one included unless a start failed.
        failed_starts: starts of this member that failed one after the other, this one included.
        task_restarts: how often the task has restarted at a step that is not done yet.
    """

    first_iteration: bool
    step_failures: int
    failed_starts: int
    task_restarts: int


@dataclass(slots=True)
class Troubles:
    """Counts failures by step, starts that failed, and restarts of the task.

    A step that is begun again after a fall-back to an older checkpoint is the same step: nothing is achieved until it is done,
    however many steps before it are done once more. `restarted_at` are the steps at which the task restarted, of those that are
    not done yet.
    """

    first_iteration: bool = True
    restarted_at: list[int] = field(default_factory=list)
    failed_at: int = 0
    in_step: dict[tuple[str, int], int] = field(default_factory=dict)
    failed_starts: dict[tuple[str, str], int] = field(default_factory=dict)

    @property
    def task_restarts(self) -> int:
        """How often the task has restarted at a step that is not done yet."""
        return len(self.restarted_at)

    def failed(self, role: str, member: str, step: int, *, starting: bool) -> Trouble:
        """Count a failure.

        Args:
            role: the member's role.
            member: its id.
            step: batches trained on so far.
            starting: whether it failed while it started.
        """
        self.failed_at = step
        if starting:
            starts = self.failed_starts[role, member] = self.failed_starts.get((role, member), 0) + 1
            return Trouble(self.first_iteration, self.in_step.get((role, step), 0), starts, self.task_restarts)
        self.failed_starts.pop((role, member), None)
        faults = self.in_step[role, step] = self.in_step.get((role, step), 0) + 1
        return Trouble(self.first_iteration, faults, 0, self.task_restarts)

    def came_up(self, role: str, member: str) -> None:
        """A start succeeded."""
        self.failed_starts.pop((role, member), None)

    def stepped(self, step: int) -> None:
        """A batch was trained on.

        Args:
            step: batches trained on before it.
        """
        self.first_iteration = False
        self.restarted_at = [at for at in self.restarted_at if at > step]
        self.in_step = {key: count for key, count in self.in_step.items() if key[1] != step}

    def task_restarted(self) -> None:
        """The whole task restarts because of the last failure: its next iteration is a first one."""
        self.first_iteration = True
        self.restarted_at.append(self.failed_at)
        self.in_step.clear()
        self.failed_starts.clear()


def restarts_task(failure: Failure) -> bool:
    """Whether the whole task restarts instead of the trainer, by the three conditions of Figure 7."""
    if failure.starting:
        return failure.failed_starts >= 2
    return failure.first_iteration or failure.step_failures >= 2


ROLES = ("replica", "relay", "scorer", "trainer", "data", "ranker", "environment")
_REPLACEABLE = ("replica", "relay", "scorer", "ranker", "environment")
_MOVABLE = ("replica", "relay", "trainer", "environment")  # the others stand beside the controller, on whatever machine
TRAINER, REPLICA = "trainer", "replica"
DISPENSABLE = ("ranker",)  # nothing waits for it


@dataclass(frozen=True, slots=True)
class Isolate(RecoveryPolicy):
    """Contain a failure in its role (Laminar, sections 3.3 and 4.3). Plugin ``isolate``.

    While one member is down, the others continue. A replica, relay, scorer, ranker or environment is restarted, the trainer
    from its last durable checkpoint, the data role with its store. If a replica, relay, environment or trainer fails again and
    again without doing work in between, and another machine has room, its machine is evicted and a replacement starts
    elsewhere, with as many restarts as before. If there is no room, or the fault comes again there too, the member is evicted
    and others do its work; nobody has to do a ranker's. A member that cannot be replaced, or one of an unknown role, fails the
    run.

    Args:
        max_restarts: restarts in place of a replica, relay, scorer, ranker or environment without work in between. After that
            its machine is replaced, or it is evicted, or the run fails if it is the last of its role, but for a ranker. The
            paper tries one.
        trainer_restarts: restarts of the trainer without work in between, before the run fails.
        data_restarts: restarts of the data role without work in between, before the run fails.
        window_s: seconds after which a failure no longer counts for its machine (`machine_failures`). One of a member counts
            until it has done its work.
        machine_failures: failures on one machine in the window after which the machine is no longer used; 0 for never. A
            member that has used up its restarts on a second machine too does not condemn that one, since the fault is then in
            the member. A machine that does not pass its checks is not used in any case, and one that holds the store always.

    Raises:
        RecoveryError: a limit is out of its range.
    """

    max_restarts: Annotated[int, Tried((1_000,), rarely=(0, 1, 2, 3))] = 3
    trainer_restarts: Annotated[int, Tried((1_000,), rarely=(0, 1, 2))] = 3
    data_restarts: Annotated[int, Tried((1_000,), rarely=(0, 1, 2))] = 3
    window_s: float = 600.0
    machine_failures: int = 0

    def __post_init__(self) -> None:
        _check_limits(self)

    def on_down(self, failure: Failure) -> RecoveryAction:
        """Restart the member in place while it has restarts left, then elsewhere; then evict it, or fail the run."""
        if failure.failures - failure.moved > self.allowed(failure.role):
            persists = failure.role in _MOVABLE and failure.cause is not Cause.MACHINE and not failure.moved
            if persists and failure.elsewhere:
                return RecoveryAction.REPLACE if failure.beside_store else RecoveryAction.EVICT_MACHINE
            goes_on = failure.role in DISPENSABLE or (failure.role in _REPLACEABLE and failure.others > 0)
            return RecoveryAction.EVICT if goes_on else RecoveryAction.FAIL
        if failure.machine and (
            failure.cause is Cause.MACHINE or 0 < self.machine_failures <= failure.machine_failures
        ):
            return RecoveryAction.EVICT_MACHINE
        return RecoveryAction.RESTART

    def allowed(self, role: str) -> int:
        """Restarts in a row, without work in between, that a member of a role has."""
        if role in _REPLACEABLE:
            return self.max_restarts
        return {"trainer": self.trainer_restarts, "data": self.data_restarts}.get(role, 0)


@dataclass(frozen=True, slots=True)
class RoleBased(RecoveryPolicy):
    """Restart the role that failed, and the task only where that cannot help (RobustRL, section 5.1). Plugin ``role-based``.

    A fault of the trainer ends all its ranks. It starts again from its last checkpoint and trains on what rollouts went on
    making meanwhile; no new batch is taken for it. The whole task restarts, with what the store holds, if the fault is in the
    first iteration (also the first after such a restart), is the second in one step, or if a restart fails twice. A code error
    of a replica in the first iteration does so too. Any other member is replaced alone, and after `max_restarts` without work
    in between evicted if others do its work; if not, the task restarts. A fault of a replica on the trainer's devices is one of
    the trainer too (section 4). After `max_task_restarts` restarts of the task without a step in between the run fails.

    Args:
        max_task_restarts: restarts of the whole task without a batch trained on in between, before the run fails.
        max_restarts: restarts of any other member than the trainer without work in between.
        window_s: seconds after which a failure no longer counts for its machine (`machine_failures`). One of a member counts
            until it has done its work.
        machine_failures: failures on one machine in the window after which the machine is no longer used; 0 for never.
        standby: whether a trainer that lost its machine takes a replica's, which starts anew elsewhere (section 5.1.3).
        machines_count: whether the loss of the trainer's machine is a fault like any other, so that the first one in the first
            iteration and the second one in a step restart the whole task, as the paper says ("an explicit machine or code
            error"). Else it never does while the trainer has restarts left: the fault is known to be the machine's.

    Raises:
        RecoveryError: a limit is out of its range.
    """

    max_task_restarts: Annotated[int, Tried((1_000,), rarely=(0, 1, 2))] = 3
    max_restarts: Annotated[int, Tried((1_000,), rarely=(0, 1, 3))] = 3
    window_s: float = 600.0
    machine_failures: int = 0
    standby: bool = False
    machines_count: Annotated[bool, Tried((False, True))] = False

    def __post_init__(self) -> None:
        _check_limits(self)

    def takes_standbys(self) -> bool:
        """Where it is told so."""
        return self.standby

    def on_down(self, failure: Failure) -> RecoveryAction:
        """Restart the member, evict it, let a replica stand in, restart the task, or fail."""
        role = failure.role
        if role not in ROLES:
            return RecoveryAction.FAIL
        if role != TRAINER and failure.failures > self.max_restarts:
            if role in DISPENSABLE or (role in _REPLACEABLE and failure.others > 0):
                return RecoveryAction.EVICT
            return self._task(failure)
        unfit = failure.cause is Cause.MACHINE and bool(failure.machine) and failure.failures <= self.max_restarts
        code_error = role == REPLICA and failure.cause is Cause.BROKE and failure.first_iteration
        excused = unfit and (
            failure.starting or not self.machines_count
        )  # a machine that failed its checks is no fault
        if not excused and (code_error or (role == TRAINER and restarts_task(failure))):
            return self._task(failure)
        if unfit and role == TRAINER and self.standby and failure.standbys:
            return RecoveryAction.STANDBY
        if unfit or (failure.machine and 0 < self.machine_failures <= failure.machine_failures):
            return RecoveryAction.EVICT_MACHINE
        return RecoveryAction.RESTART_TRAINER if failure.hybrid else RecoveryAction.RESTART

    def _task(self, failure: Failure) -> RecoveryAction:
        if failure.task_restarts >= self.max_task_restarts:
            return RecoveryAction.FAIL
        return RecoveryAction.RESTART_TASK


@dataclass(frozen=True, slots=True)
class RestartTask(RecoveryPolicy):
    """Restart everything whatever fails, and lose the rollouts of the step. Plugin ``restart-task``.

    The baseline of RobustRL (ByteRobust; section 2.2): the task restarts from its last checkpoint, and what was generated since
    is generated again.

    Args:
        max_task_restarts: restarts without a batch trained on in between, before the run fails. With 0 any failure fails the
            run, as where nothing restarts it (the baseline of Laminar, section 3.3).
        window_s: it changes nothing here.

    Raises:
        RecoveryError: a limit is out of its range.
    """

    max_task_restarts: int = 3
    window_s: float = 600.0

    def __post_init__(self) -> None:
        _check_limits(self)

    def on_down(self, failure: Failure) -> RecoveryAction:
        """Start over, or fail."""
        if failure.role not in ROLES or failure.task_restarts >= self.max_task_restarts:
            return RecoveryAction.FAIL
        return RecoveryAction.START_OVER


def _check_limits(policy: Isolate | RoleBased | RestartTask) -> None:
    """Check that limits are not negative, and the window above 0.

    Raises:
        RecoveryError: one is not.
    """
    for limit in fields(policy):
        value = getattr(policy, limit.name)
        seconds = limit.name == "window_s"
        if not math.isfinite(value) or value < 0 or (seconds and value == 0):
            expected = "a number of seconds above 0" if seconds else "a number of at least 0"
            raise RecoveryError(f"found {limit.name}={value}, expected {expected}")
