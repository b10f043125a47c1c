"""The replica whose machine a trainer may take that lost its own: warm standbys (RobustRL, section 5.1.3).

    trainer's machine is gone ──► recovery says STANDBY ──► the trainer starts on a replica's machine
                                                       └──► what that replica had goes on elsewhere; it starts anew elsewhere

A replica may stand in that stands on no device of the trainer, at the trainer's site, on devices of its kind; that is not the
last one to generate; and of whose version there is another holder, if it is not the one that is published.
"""

from __future__ import annotations

from tailrace import contracts as c
from tailrace.pipeline.controller.fleet import Replicas, ReplicaState
from tailrace.pipeline.controller.members import Members
from tailrace.pipeline.controller.trainer_state import TrainerState
from tailrace.pipeline.spec import PipelineSpec


class Standbys:
    """The replicas that could stand in now."""

    def __init__(self, spec: PipelineSpec, members: Members, fleet: Replicas, trainer: TrainerState) -> None:
        self._spec, self._members, self._fleet, self._trainer = spec, members, fleet, trainer
        self._alike = {pool.name for pool in spec.pools if pool.standby} if spec.pools else {""}

    def for_one_on(self, machine: str) -> list[ReplicaState]:
        """Replicas whose machine a trainer may take after it lost this one, least busy first."""
        up = [replica for replica in self._fleet.up() if replica.member.machine != machine]
        if not self._spec.machines or len(up) < 2:
            return []
        return sorted((one for one in up if self._fits(one, up)), key=lambda one: one.in_flight)

    def _fits(self, replica: ReplicaState, up: list[ReplicaState]) -> bool:
        member, version = replica.member, replica.version
        if replica.cells or member.hybrid or member.pool not in self._alike or member.health is not c.Health.UP:
            return False
        if not member.machine or member.machine in self._members.given_up:
            return False
        others = any(other.version == version for other in up if other is not replica)
        return others or version in (None, self._trainer.published)
