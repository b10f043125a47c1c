"""Groups that fail: their verifier broke too often, an engine refused their prompt, or an environment did not answer a turn.

The run goes on, up to a limit.
"""

from __future__ import annotations

from typing import Final

from tailrace import contracts as c
from tailrace.controller.groups import Groups
from tailrace.controller.state import State
from tailrace.controller.trajectories import Phase, TrajectoryState

_EVAL: Final = c.Purpose.EVAL


class FailedGroups:
    """Ends groups that cannot be answered or scored."""

    def __init__(self, state: State, groups: Groups) -> None:
        self._state, self._groups = state, groups
        self._ledger, self._fleet, self._scoring, self._sessions = (
            state.ledger, state.fleet, state.scoring, state.sessions,
        )  # fmt: skip
        self.unscored = 0  # groups without a reward, deferred ones too, since the run last failed
        self.refused_since = 0  # groups refused since one was complete
        self.unanswered_since = 0  # groups that an environment did not answer since one was complete
        self.completed = 0  # groups that were complete then

    def scoring_failed(self, event: c.ScoringFailed) -> None:
        """Try the verifier again; after the last attempt, drop the group.

        The group's prompt may come again later, as the batching source says. Too many such groups end the run.
        """
        trajectory = self._ledger.trajectories.get(event.trajectory)
        if trajectory is None or trajectory.phase is not Phase.DONE:
            return
        if self._ledger.scoring_failed(trajectory) < self._state.spec.scoring_attempts:
            self._scoring.next.append(trajectory.id)
            return
        if trajectory.purpose is _EVAL:
            self._never_scored(trajectory, event)
            return
        attempts = {"attempts": self._state.spec.scoring_attempts}
        self._drop(trajectory, c.GroupEnd.UNSCORED, c.Reason(c.Why.NOT_SCORED, numbers=attempts), event.reason)
        self.unscored += 1
        if self.unscored >= self._state.spec.failed_groups_limit:
            self._state.fail(f"{self.unscored} groups could not be scored, the last because: {event.reason}")

    def refused(self, event: c.Refused) -> None:
        """Give a group up whose prompt an engine refused. Many such groups with no complete one between them end the run."""
        name, replica = event.trajectory, self._fleet.replicas[event.replica]
        trajectory = self._ledger.trajectories.get(name)
        replica.left(name, evaluation=trajectory is not None and trajectory.purpose is _EVAL)
        if trajectory is None or trajectory.replica != event.replica:
            return  # its group has ended, or it has gone elsewhere
        self._state.unbind(trajectory)
        self._ledger.returned(name, None)
        if trajectory.purpose is _EVAL:
            self._sessions.close([name])
            self._never_scored(trajectory, event)
            return
        self._drop(trajectory, c.GroupEnd.FAILED, c.Reason(c.Why.REFUSED, event.replica), event.reason)
        self._completed()
        self.refused_since += 1
        if self.refused_since >= self._state.spec.failed_groups_limit:
            self._state.fail(f"engines refused {self.refused_since} groups in a row, the last because: {event.reason}")

    def call_failed(self, event: c.CallFailed) -> None:
        """Give up a group that an environment did not answer; many in a row end the run. A lost session is begun anew."""
        member = self._sessions.answered(event)
        if member is None:
            return  # its group has ended
        self._sessions.over(event.trajectory)
        trajectory = self._ledger.trajectories[event.trajectory]
        self._fleet.comes_back(trajectory)
        if event.lost:
            lost = self._ledger.session_lost(event.trajectory)
            self._state.discards.begin_anew([lost], c.Reason(c.Why.SESSION_LOST))
            return
        self._state.brought.unanswered += 1
        self._ledger.returned(event.trajectory, None)
        if trajectory.purpose is _EVAL:
            self._never_scored(trajectory, event)
            return
        self._drop(trajectory, c.GroupEnd.FAILED, c.Reason(c.Why.UNANSWERED, member), event.reason)
        self._completed()
        self.unanswered_since += 1
        if self.unanswered_since >= self._state.spec.failed_groups_limit:
            self._state.fail(
                f"environments did not answer {self.unanswered_since} groups in a row, the last: {event.reason}"
            )

    def begin_anew(self) -> None:
        """Count none of those so far, since a run that failed goes on."""
        self.unscored = self.refused_since = self.unanswered_since = 0

    def _completed(self) -> None:
        """Begin to count anew if a group was complete since the last time."""
        completed = self._ledger.counts.completed
        if completed > self.completed:
            self.completed, self.refused_since, self.unanswered_since = completed, 0, 0

    def _never_scored(self, trajectory: TrajectoryState, event: c.ScoringFailed | c.Refused | c.CallFailed) -> None:
        """End a held-out problem without a reward."""
        self._ledger.never_scored(trajectory, self._state.trainer.version)
        state = self._state
        state.ledger.settle_eval(state.evaluations.scored(trajectory, event, state.trainer, state.now))

    def _drop(self, trajectory: TrajectoryState, end: c.GroupEnd, reason: c.Reason, words: str) -> None:
        self._ledger.fails_because(reason.why, words)
        self._groups.drop(trajectory.group, end, reason)
        self._groups.drop_surplus()
