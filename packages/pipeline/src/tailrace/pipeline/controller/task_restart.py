"""Restarts the whole task within a run: every member anew, from the trainer's checkpoint.

    recovery asks ──► all of an instant's events are taken in ──► every member restarts ──► the store says what it holds
                                                                     └─ starting over: nothing that was generated for batches
                                                                        after the checkpoint counts; the store drops it

It is what a resumed run does after its driver died, but for the driver. Starting over is the baseline of RobustRL: the groups
keep their prompts and their place, and all their trajectories begin anew.
"""

from __future__ import annotations

from collections.abc import Callable

from tailrace import contracts as c
from tailrace.pipeline.controller.discards import Discards
from tailrace.pipeline.controller.failures import Failures
from tailrace.pipeline.controller.ledger import Ledger
from tailrace.pipeline.controller.losses import Losses
from tailrace.pipeline.controller.members import Members
from tailrace.pipeline.controller.outbox import Outbox
from tailrace.pipeline.controller.provisioning import Provisioning
from tailrace.pipeline.controller.states import GroupPhase, TrajectoryState
from tailrace.pipeline.controller.trainer_state import TrainerState

_OPEN = (GroupPhase.GENERATING, GroupPhase.BUFFERED)


class TaskRestart:
    """Carries out what recovery asked of `Failures`.

    Args:
        fall_back: sets trainer, admission and groups back to a checkpoint.
    """

    def __init__(
        self,
        ledger: Ledger,
        members: Members,
        trainer: TrainerState,
        failures: Failures,
        losses: Losses,
        provisioning: Provisioning,
        discards: Discards,
        outbox: Outbox,
        fall_back: Callable[[int], None],
    ) -> None:
        self._ledger, self._members, self._trainer, self._failures = ledger, members, trainer, failures
        self._losses, self._provisioning, self._discards = losses, provisioning, discards
        self._outbox, self._fall_back = outbox, fall_back

    def carry_out(self) -> bool:
        """Restart every member if that is due. Returns whether it was."""
        if self._failures.task is None:
            return False
        over, culprit, reason = self._failures.task
        for member in list(self._members.states.values()):
            self._losses.lost(member)
            if member.health is c.Health.STOPPING:  # it may not have been told yet
                self._outbox.send(c.Stop, role=member.role, id=member.id)
        self._members.restarted()
        self._provisioning.restarted()
        trainer = self._trainer
        trainer.found(trainer.fallbacks)
        dropped = self._start_over() if over else []
        self._failures.restart_task(trainer.fallbacks[-1], culprit, reason)
        if dropped:
            who = f"{culprit.role} {culprit.id}"
            numbers = {"task_restarts": float(self._failures.troubles.task_restarts)}
            self._discards.begin_anew(dropped, c.Reason(c.Why.TASK_RESTART, who, numbers))
        if over:
            self._fall_back(trainer.fallbacks[-1])  # admission hears which groups are complete no more
        return True

    def _start_over(self) -> list[TrajectoryState]:
        """Take back all that was generated for batches after the checkpoint. Returns the trajectories that begin anew."""
        version, ledger = self._trainer.fallbacks[-1], self._ledger
        ledger.roll_back(version)
        self._trainer.fall_back(version)
        dropped: list[TrajectoryState] = []
        for group in ledger.groups.values():
            if group.version is None or group.phase not in _OPEN:
                continue
            if group.phase is GroupPhase.BUFFERED:
                del ledger.buffered[group.index]
                group.phase, group.candidate, group.kept = GroupPhase.GENERATING, None, True
                ledger.generating += 1
            group.version = max(group.version, self._trainer.version)  # it starts again, with the weights of then
            group.scored = group.tokens = group.observed = 0
            group.rewards, group.newer = [None] * len(group.rewards), None
            for state in group.states:
                ledger.counts.regenerated_trajectories += state.version is not None
                ledger.restarted(state)
                state.reward, state.scoring_attempts, state.completed_at = None, 0, 0
                dropped.append(state)
        return dropped
