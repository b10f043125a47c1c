"""When a restart of the trainer is not enough: the robust trainer workflow (RobustRL, section 5.1.2, Figure 7). Pure.

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

from dataclasses import dataclass, field

from tailrace.contracts import Failure


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
