"""Restarts the whole task within a run: every member anew, from the trainer's checkpoint.

    recovery asks ──► all of an instant's events are taken in ──► every member restarts ──► the store says what it holds
                                                                     └─ starting over: nothing that was generated for batches
                                                                        after the checkpoint counts; the store drops it

It is what a resumed run does after its driver died, but for the driver. Starting over is the baseline of RobustRL: the groups
keep their prompts and their place, and all their trajectories begin anew.
"""

from __future__ import annotations

from tailrace import contracts as c
from tailrace.pipeline.controller.provisioning import Provisioning
from tailrace.pipeline.controller.recovery.failures import Failures
from tailrace.pipeline.controller.recovery.fall_back import FallBack
from tailrace.pipeline.controller.recovery.losses import lost
from tailrace.pipeline.controller.state import State
from tailrace.pipeline.controller.trajectories import GroupPhase, TrajectoryState

_OPEN = (GroupPhase.GENERATING, GroupPhase.BUFFERED)


class TaskRestart:
    """Carries out what recovery asked of `Failures`."""

    def __init__(self, state: State, failures: Failures, provisioning: Provisioning, fall_back: FallBack) -> None:
        self._state, self._failures, self._provisioning, self._fall_back = state, failures, provisioning, fall_back
        self._ledger, self._members, self._trainer = state.ledger, state.members, state.trainer

    def carry_out(self) -> bool:
        """Restart every member if that is due. Returns whether it was."""
        if self._failures.task is None:
            return False
        over, culprit, reason = self._failures.task
        for member in list(self._members.states.values()):
            lost(self._state, member)
            if member.health is c.Health.STOPPING:  # it may not have been told yet
                self._state.outbox.send(c.Stop, role=member.role, id=member.id)
        self._members.restarted()
        self._provisioning.restarted()
        trainer = self._trainer
        trainer.found(trainer.fallbacks)
        dropped = self._start_over() if over else []
        self._failures.restart_task(trainer.fallbacks[-1], culprit, reason)
        if dropped:
            who = f"{culprit.role} {culprit.id}"
            numbers = {"task_restarts": float(self._failures.troubles.task_restarts)}
            self._state.discards.begin_anew(dropped, c.Reason(c.Why.TASK_RESTART, who, numbers))
        if over:
            self._fall_back.to(trainer.fallbacks[-1])  # admission hears which groups are complete no more
        return True

    def _start_over(self) -> list[TrajectoryState]:
        """Take back all that was generated for batches after the checkpoint. Returns the trajectories that begin anew."""
        version, ledger = self._trainer.fallbacks[-1], self._ledger
        ledger.roll_back(version)
        self._trainer.fall_back(version)
        open_groups = [group for group in ledger.groups.values() if group.version is not None and group.phase in _OPEN]
        return [state for group in open_groups for state in ledger.start_over(group, self._trainer.version)]
