"""Updates the state when a member goes down: what is lost with it, and what becomes of its work."""

from __future__ import annotations

from collections.abc import Callable

from tailrace import contracts as c
from tailrace.pipeline.controller.coordinator import Coordinator
from tailrace.pipeline.controller.environments import Environments
from tailrace.pipeline.controller.fleet import Replicas
from tailrace.pipeline.controller.ledger import Ledger
from tailrace.pipeline.controller.measuring import Measuring
from tailrace.pipeline.controller.members import DATA, ENVIRONMENT, RANKER, RELAY, REPLICA, SCORER, TRAINER, MemberState
from tailrace.pipeline.controller.predictions import Predictions
from tailrace.pipeline.controller.scoring import Scoring
from tailrace.pipeline.controller.sessions import Sessions
from tailrace.pipeline.controller.states import Phase
from tailrace.pipeline.controller.trainer_state import TrainerState


class Losses:
    """Notes members that are gone, and what survived them."""

    def __init__(
        self,
        ledger: Ledger,
        fleet: Replicas,
        trainer: TrainerState,
        scoring: Scoring,
        predictions: Predictions,
        measuring: Measuring,
        coordinator: Coordinator,
        sessions: Sessions,
        environments: Environments,
    ) -> None:
        self._ledger, self._fleet, self._trainer = ledger, fleet, trainer
        self._scoring, self._predictions, self._coordinator = scoring, predictions, coordinator
        self._measuring = measuring
        self._sessions, self._environments = sessions, environments

    def lost(self, member: MemberState) -> None:
        """Note that a member is gone with its state, except the data role's store, which survives."""
        if member.role == REPLICA:
            self._replica(member.id)
        elif member.role == TRAINER:
            self._trainer.went_down()
        elif member.role == SCORER:
            self._scoring.went_down()
        elif member.role == RANKER:
            self._predictions.went_down()
        elif member.role == DATA:
            self._measuring.went_down()
        elif member.role == ENVIRONMENT:
            self._sessions.went_down(member.id)
        elif member.role == RELAY:  # pulls that failed because of it say nothing about the replicas
            for replica in self._fleet.replicas.values():
                replica.failed_pulls = 0

    def _replica(self, name: str) -> None:
        """Put a replica's trajectories back in the pool, and cancel moves to it."""
        ledger, replica = self._ledger, self._fleet.replicas[name]
        for moving in [*ledger.moving]:
            if ledger.trajectories[moving].destination == name:
                self._coordinator.unbind(ledger.trajectories[moving])
        for trajectory in tuple(replica.assigned):
            self._coordinator.unbind(ledger.trajectories[trajectory])
            ledger.returned(trajectory, None)
        replica.reset()

    def survived(self, event: c.Up, generated: Callable[[int], None]) -> None:
        """Take over what the store reports that it holds after the driver's death.

        Args:
            generated: told the group of each complete trajectory, in the order in which the store got them.
        """
        held, ledger = dict.fromkeys(event.held), self._ledger
        self._environments.forget()
        for trajectory in list(ledger.trajectories.values()):
            if trajectory.phase is Phase.SCORED or trajectory.id in ledger.discarding:
                held.pop(trajectory.id, None)
                continue
            trajectory.replica = None
            ledger.bind(trajectory, None)
            if trajectory.id not in held:
                ledger.restarted(trajectory, *event.partial.get(trajectory.id, (None, 0)))
        for name in held:
            complete = ledger.trajectories.get(name)
            if complete is not None:
                ledger.finished(complete, complete.tokens, self._trainer.version)
                if complete.purpose is c.Purpose.TRAIN:
                    generated(complete.group)
        if self._scoring.up:
            self._scoring.came_up()
