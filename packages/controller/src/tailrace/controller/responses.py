"""What becomes of trajectories: on replicas, in environments and with the scorer.

Invariant: what is said of a trajectory that was dropped, is elsewhere or begins anew changes nothing but its replica's load,
and what counts as work of its sender.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from tailrace import contracts as c
from tailrace.controller.environments import Environments
from tailrace.controller.groups import Groups
from tailrace.controller.members import DATA, SCORER
from tailrace.controller.prefix_caches import leaves
from tailrace.controller.provisioning import Provisioning
from tailrace.controller.state import State
from tailrace.controller.trajectories import GroupPhase, Phase, TrajectoryState

_TRAIN: Final = c.Purpose.TRAIN
_EVAL: Final = c.Purpose.EVAL
_DONE: Final = Phase.DONE
_LENGTH: Final = c.FinishReason.LENGTH


class Responses:
    """Takes in that trajectories finished, were answered by an environment, were interrupted or have their rewards."""

    def __init__(self, state: State, environments: Environments, groups: Groups, provisioning: Provisioning) -> None:
        self._state, self._environments, self._groups, self._provisioning = state, environments, groups, provisioning
        self._ledger, self._fleet, self._members, self._trainer = (
            state.ledger, state.fleet, state.members, state.trainer,
        )  # fmt: skip
        self._evaluations, self._scoring, self._sessions = state.evaluations, state.scoring, state.sessions

    def finished(self, events: Iterable[c.Finished]) -> None:
        """Trajectories are complete. One that was dropped, or is complete already, only leaves its replica."""
        replicas, trajectories, ledger = self._fleet.replicas, self._ledger.trajectories, self._ledger
        trainer, sessions = self._trainer.version, self._sessions.of
        for event in events:
            name = event.trajectory
            replica, state = replicas[event.replica], trajectories.get(name)
            replica.left(name, evaluation=state is not None and state.purpose is _EVAL)
            replica.member.worked()
            if state is None:
                ledger.expect_admitted(name)
                continue
            if name in ledger.discarding or (state.replica is not None and state.replica != replica.id):
                continue  # another replica has it by now, since this one was lost
            if not ledger.finished(state, event.tokens, trainer, truncated=event.reason is _LENGTH):
                continue
            if name in sessions:
                self._sessions.close([name])
            self.completed(state)

    def turned(self, event: c.Turned) -> None:
        """An environment has answered, and may have ended the trajectory with that."""
        state = self._environments.turned(event)
        if state is None:
            return
        truncated = event.reason is _LENGTH
        if self._ledger.finished(state, event.tokens, self._trainer.version, truncated=truncated):
            self.completed(state)

    def completed(self, state: TrajectoryState) -> None:
        """Have a trajectory scored that has just finished."""
        if state.destination is not None:
            self._state.unbind(state)
        if state.purpose is _TRAIN and state.version is not None:
            self._trainer.completed(state.version)
        self._scoring.next.append(state.id)
        if state.purpose is _TRAIN:
            self._provisioning.finished(state.tokens)
            self._groups.generated(state.group)

    def interrupted(self, event: c.Interrupted) -> None:
        """A trajectory goes back to the pool with its tokens, unless it is elsewhere by now."""
        name, state = event.trajectory, self._ledger.trajectories.get(event.trajectory)
        self._fleet.interrupted(event, evaluation=state is not None and state.purpose is _EVAL)
        if state is None:
            self._ledger.expect_admitted(name)
        elif state.replica == event.replica:
            self._ledger.returned(name, event.tokens_kept)
            if self._state.sees_prefixes:
                leaves(self._ledger, self._fleet.replicas[event.replica], state)

    def scored(self, events: Iterable[c.Scored]) -> None:
        """Trajectories have their rewards; with the last one that it needs, a group is complete."""
        trajectories, ledger = self._ledger.trajectories, self._ledger
        for event in events:
            trajectory = trajectories.get(event.trajectory)
            if trajectory is None:
                ledger.expect_admitted(event.trajectory)
                continue  # it was dropped
            if trajectory.phase is not _DONE:
                continue  # it is scored already
            group = ledger.scored(trajectory, event.reward)
            if group is None:
                ledger.settle_eval(self._evaluations.scored(trajectory, event, self._trainer, self._state.now))
            elif group.scored >= group.needed and group.phase is GroupPhase.GENERATING:
                self._groups.complete(group)
        self._members.worked(SCORER)
        self._members.worked(DATA)
