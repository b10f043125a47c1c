"""What becomes of trajectories: on replicas, in environments and with the scorer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from tailrace import contracts as c
from tailrace.pipeline.controller.coordinator import Coordinator
from tailrace.pipeline.controller.environments import Environments
from tailrace.pipeline.controller.evaluations import Evaluations
from tailrace.pipeline.controller.fleet import Replicas
from tailrace.pipeline.controller.groups import Groups
from tailrace.pipeline.controller.ledger import Ledger
from tailrace.pipeline.controller.members import DATA, SCORER, Members
from tailrace.pipeline.controller.predictions import Predictions
from tailrace.pipeline.controller.provisioning import Provisioning
from tailrace.pipeline.controller.scoring import Scoring
from tailrace.pipeline.controller.sessions import Sessions
from tailrace.pipeline.controller.states import GroupPhase, Phase, TrajectoryState
from tailrace.pipeline.controller.trainer_state import TrainerState

_TRAIN: Final = c.Purpose.TRAIN
_EVAL: Final = c.Purpose.EVAL
_DONE: Final = Phase.DONE


class Responses:
    """Takes in that trajectories finished, were answered by an environment, were interrupted or have their rewards.

    `now` is the time of the events, in seconds on the run's clock.
    """

    def __init__(
        self,
        ledger: Ledger,
        fleet: Replicas,
        members: Members,
        trainer: TrainerState,
        evaluations: Evaluations,
        scoring: Scoring,
        predictions: Predictions,
        coordinator: Coordinator,
        groups: Groups,
        provisioning: Provisioning,
        sessions: Sessions,
        environments: Environments,
    ) -> None:
        self.now = 0.0
        self._ledger, self._fleet, self._members, self._trainer = ledger, fleet, members, trainer
        self._evaluations, self._scoring, self._predictions = evaluations, scoring, predictions
        self._coordinator, self._groups, self._provisioning = coordinator, groups, provisioning
        self._sessions, self._environments = sessions, environments

    def finished(self, events: Iterable[c.Finished]) -> None:
        """Trajectories are complete. One that was dropped, or is complete already, only leaves its replica."""
        replicas, trajectories, ledger = self._fleet.replicas, self._ledger.trajectories, self._ledger
        trainer, sessions = self._trainer.version, self._sessions.of
        for event in events:
            name = event.trajectory
            replica, state = replicas[event.replica], trajectories.get(name)
            replica.left(name, evaluation=state is not None and state.purpose is _EVAL)
            replica.member.worked()
            if state is None or name in ledger.discarding or not ledger.finished(state, event.tokens, trainer):
                continue
            if name in sessions:
                self._sessions.close([name])
            self._complete(state)

    def turned(self, event: c.Turned) -> None:
        """An environment has answered, and may have ended the trajectory with that."""
        state = self._environments.turned(event)
        if state is not None and self._ledger.finished(state, event.tokens, self._trainer.version):
            self._complete(state)

    def _complete(self, state: TrajectoryState) -> None:
        """Have a trajectory scored that has just finished."""
        if state.destination is not None:
            self._coordinator.unbind(state)
        if state.purpose is _TRAIN and state.version is not None:
            lag, counts = self._trainer.version - state.version, self._trainer.staleness_at_completion
            counts[lag] = counts.get(lag, 0) + 1
        self._scoring.next.append(state.id)
        if state.purpose is _TRAIN:
            self._provisioning.finished(state.tokens)
            self._groups.generated(state.group)

    def interrupted(self, event: c.Interrupted) -> None:
        """A trajectory goes back to the pool with its tokens, unless it is elsewhere by now."""
        name, state = event.trajectory, self._ledger.trajectories.get(event.trajectory)
        evaluation = state is not None and state.purpose is _EVAL
        self._coordinator.interrupted(event)
        self._fleet.replicas[event.replica].left(name, evaluation=evaluation)
        if state is not None and state.replica == event.replica:
            self._ledger.returned(name, event.tokens_kept)

    def scored(self, events: Iterable[c.Scored]) -> None:
        """Trajectories have their rewards; with the last one that it needs, a group is complete."""
        trajectories, ledger = self._ledger.trajectories, self._ledger
        for event in events:
            trajectory = trajectories.get(event.trajectory)
            if trajectory is None or trajectory.phase is not _DONE:
                continue  # it was dropped, or is scored already
            group = ledger.scored(trajectory, event.reward)
            if group is None:
                ledger.settle_eval(self._evaluations.scored(trajectory, event, self._trainer, self.now))
            elif group.scored >= group.needed and group.phase is GroupPhase.GENERATING:
                self._predictions.completed(group)
                self._groups.complete(group)
        self._members.worked(SCORER)
        self._members.worked(DATA)
