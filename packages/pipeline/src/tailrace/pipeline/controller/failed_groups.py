"""Groups that fail: their verifier broke too often, an engine refused their prompt, or an environment did not answer a turn.

The run goes on, up to a limit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tailrace import contracts as c
from tailrace.pipeline.controller.coordinator import Coordinator
from tailrace.pipeline.controller.discards import Discards
from tailrace.pipeline.controller.evaluations import Evaluations
from tailrace.pipeline.controller.fleet import Replicas
from tailrace.pipeline.controller.groups import Groups
from tailrace.pipeline.controller.ledger import Ledger
from tailrace.pipeline.controller.scoring import Scoring
from tailrace.pipeline.controller.sessions import Sessions
from tailrace.pipeline.controller.states import Phase, TrajectoryState
from tailrace.pipeline.controller.trainer_state import TrainerState
from tailrace.pipeline.spec import PipelineSpec

_EVAL: Final = c.Purpose.EVAL


class FailedGroups:
    """Ends groups that cannot be answered or scored.

    Args:
        fail: ends the run with a reason.
    """

    def __init__(
        self,
        spec: PipelineSpec,
        ledger: Ledger,
        fleet: Replicas,
        trainer: TrainerState,
        evaluations: Evaluations,
        coordinator: Coordinator,
        scoring: Scoring,
        groups: Groups,
        sessions: Sessions,
        discards: Discards,
        fail: Callable[[str], None],
    ) -> None:
        self._spec, self._ledger, self._fleet, self._trainer = spec, ledger, fleet, trainer
        self._evaluations, self._coordinator, self._scoring = evaluations, coordinator, scoring
        self._groups, self._fail = groups, fail
        self._sessions, self._discards = sessions, discards
        self.now = 0.0
        self.unscored = 0  # groups without a reward, deferred ones too
        self.refused_since = 0  # groups refused since one was complete
        self.unanswered_since = 0  # groups that an environment did not answer since one was complete
        self.completed = 0  # groups that were complete then

    def scoring_failed(self, event: c.ScoringFailed) -> None:
        """Try a verifier that broke again, or give the trajectory's group up: its prompt may come again later, as the batching
        source says. Too many such groups end the run.
        """
        trajectory = self._ledger.trajectories.get(event.trajectory)
        if trajectory is None or trajectory.phase is not Phase.DONE or not self._scoring.failed(trajectory):
            return
        if trajectory.purpose is _EVAL:
            self._unanswered(trajectory, event)
            return
        attempts = {"attempts": self._spec.scoring_attempts}
        self._drop(trajectory, c.GroupEnd.UNSCORED, c.Reason(c.Why.NOT_SCORED, numbers=attempts), event.reason)
        self.unscored += 1
        if self.unscored >= self._spec.failed_groups_limit:
            self._fail(f"{self.unscored} groups could not be scored, the last because: {event.reason}")

    def refused(self, event: c.Refused) -> None:
        """Give a group up whose prompt an engine refused. Many such groups with no complete one between them end the run."""
        name, replica = event.trajectory, self._fleet.replicas[event.replica]
        trajectory = self._ledger.trajectories.get(name)
        replica.left(name, evaluation=trajectory is not None and trajectory.purpose is _EVAL)
        if trajectory is None or trajectory.replica != event.replica:
            return  # its group has ended, or it has gone elsewhere
        self._coordinator.unbind(trajectory)
        self._ledger.returned(name, None)
        if trajectory.purpose is _EVAL:
            self._sessions.close([name])
            self._never_scored(trajectory, event)
            return
        self._drop(trajectory, c.GroupEnd.FAILED, c.Reason(c.Why.REFUSED, event.replica), event.reason)
        self._completed()
        self.refused_since += 1
        if self.refused_since >= self._spec.failed_groups_limit:
            self._fail(f"engines refused {self.refused_since} groups in a row, the last because: {event.reason}")

    def call_failed(self, event: c.CallFailed) -> None:
        """Give up a group that an environment did not answer; many in a row end the run. A lost session is begun anew."""
        member = self._sessions.answered(event)
        if member is None:
            return  # its group has ended
        self._sessions.over(event.trajectory)
        trajectory = self._ledger.trajectories[event.trajectory]
        self._fleet.comes_back(trajectory)
        self._ledger.returned(event.trajectory, None)
        if event.lost:
            counts = self._ledger.counts
            counts.sessions_lost += 1
            counts.regenerated_trajectories += 1
            self._discards.begin_anew([trajectory], c.Reason(c.Why.SESSION_LOST))
            return
        if trajectory.purpose is _EVAL:
            self._never_scored(trajectory, event)
            return
        self._drop(trajectory, c.GroupEnd.FAILED, c.Reason(c.Why.UNANSWERED, member), event.reason)
        self._completed()
        self.unanswered_since += 1
        if self.unanswered_since >= self._spec.failed_groups_limit:
            self._fail(f"environments did not answer {self.unanswered_since} groups in a row, the last: {event.reason}")

    def _completed(self) -> None:
        """Begin to count anew if a group was complete since the last time."""
        completed = self._ledger.counts.completed
        if completed > self.completed:
            self.completed, self.refused_since, self.unanswered_since = completed, 0, 0

    def _never_scored(self, trajectory: TrajectoryState, event: c.Refused | c.CallFailed) -> None:
        """End a held-out problem of which the store has no response that could be scored."""
        self._ledger.finished(trajectory, 0, self._trainer.version)
        trajectory.phase = Phase.SCORED
        self._unanswered(trajectory, event)

    def _unanswered(self, trajectory: TrajectoryState, event: c.ScoringFailed | c.Refused | c.CallFailed) -> None:
        self._ledger.settle_eval(self._evaluations.scored(trajectory, event, self._trainer, self.now))

    def _drop(self, trajectory: TrajectoryState, end: c.GroupEnd, reason: c.Reason, words: str) -> None:
        self._ledger.counts.failed_words.setdefault(reason.why, words)
        self._groups.drop(trajectory.group, end, reason)
        self._groups.drop_surplus()
