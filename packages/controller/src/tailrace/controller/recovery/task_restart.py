"""Restarts the whole task within a run: every member anew, from the trainer's checkpoint.

    recovery asks ──► all of an instant's events are taken in ──► every member restarts ──► the store says what it holds
                                                                     └─ starting over: nothing that was generated for batches
                                                                        after the checkpoint counts; the store drops it

It is what a resumed run does after its driver died (`resume`), but for the driver. Starting over is the baseline of RobustRL:
the groups keep their prompts and their place, and all their trajectories begin anew.
"""

from __future__ import annotations

from tailrace import contracts as c
from tailrace.controller.provisioning import Provisioning
from tailrace.controller.recovery.failures import Failures
from tailrace.controller.recovery.fall_back import FallBack
from tailrace.controller.recovery.losses import lost
from tailrace.controller.state import State
from tailrace.controller.trajectories import OPEN, TrajectoryState


class TaskRestart:
    """Carries out what recovery asked of `Failures`, and what a driver does that goes on after another died."""

    def __init__(self, state: State, failures: Failures, provisioning: Provisioning, fall_back: FallBack) -> None:
        self._state, self._failures, self._provisioning, self._fall_back = state, failures, provisioning, fall_back
        self._ledger, self._members, self._trainer = state.ledger, state.members, state.trainer

    def carry_out(self) -> bool:
        """Restart every member if that is due. Returns whether it was."""
        if self._failures.task is None:
            return False
        over, culprit, reason = self._failures.task
        for member in self._members.states.values():
            if member.health is c.Health.STOPPING:  # it may not have been told yet
                self._state.outbox.send(c.Stop, role=member.role, id=member.id)
        self._everybody_is_gone()
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

    def resume(self, event: c.Resumed) -> None:
        """Restart every member after the driver died. Running trajectories wait for the store's report.

        The run fails if there is no checkpoint that it could continue from.
        """
        trainer = self._trainer
        trainer.goes_on_to(event.steps)
        self._everybody_is_gone()
        self._members.has_new_machines()
        missing = 0 if event.replicas is None else self._provisioning.keep(event.replicas)
        if not trainer.found(event.checkpoints):
            self._state.fail(
                "the run has no checkpoint to continue from: expected one of "
                f"{trainer.fallbacks}, found {sorted(event.checkpoints) or 'none'}; start a new run"
            )
            return
        self._failures.restart_all(trainer.fallbacks[-1])
        self._provisioning.start(missing)

    def _everybody_is_gone(self) -> None:
        for member in self._members.states.values():
            lost(self._state, member)
        self._members.restarted()
        self._provisioning.restarted()

    def _start_over(self) -> list[TrajectoryState]:
        """Take back all that was generated for batches after the checkpoint. Returns the trajectories that begin anew."""
        version, ledger = self._trainer.fallbacks[-1], self._ledger
        ledger.roll_back(version)
        self._trainer.fall_back(version)
        open_groups = [group for group in ledger.groups.values() if group.version is not None and group.phase in OPEN]
        return [state for group in open_groups for state in ledger.start_over(group, self._trainer.version)]
