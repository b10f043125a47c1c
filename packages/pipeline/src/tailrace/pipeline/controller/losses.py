"""Updates the state when a member goes down: what is lost with it, and what becomes of its work."""

from __future__ import annotations

from tailrace.pipeline.controller.coordinator import Coordinator
from tailrace.pipeline.controller.fleet import Replicas
from tailrace.pipeline.controller.ledger import Ledger
from tailrace.pipeline.controller.members import RELAY, REPLICA, SCORER, TRAINER, MemberState
from tailrace.pipeline.controller.scoring import Scoring
from tailrace.pipeline.controller.trainer_state import TrainerState


class Losses:
    """Notes members that are gone."""

    def __init__(
        self, ledger: Ledger, fleet: Replicas, trainer: TrainerState, scoring: Scoring, coordinator: Coordinator
    ) -> None:
        self._ledger, self._fleet, self._trainer = ledger, fleet, trainer
        self._scoring, self._coordinator = scoring, coordinator

    def lost(self, member: MemberState) -> None:
        """Note that a member is gone with its state, except the data role's store, which survives."""
        if member.role == REPLICA:
            self._replica(member.id)
        elif member.role == TRAINER:
            self._trainer.went_down()
        elif member.role == SCORER:
            self._scoring.went_down()
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
