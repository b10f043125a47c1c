"""The replica whose machine a trainer may take that lost its own: warm standbys (RobustRL, section 5.1.3).

    trainer's machine is gone ──► recovery says STANDBY ──► the trainer starts on a replica's machine
                                                       └──► what that replica had goes on elsewhere; it starts anew elsewhere

A replica may stand in that stands on no device of the trainer, at the trainer's site, on devices of its kind; that is not the
last one to generate; and of whose version there is another holder, if it is not the one that is published.
"""

from __future__ import annotations

from tailrace.contracts import Health
from tailrace.controller.fleet import ReplicaState
from tailrace.controller.state import State


def standbys(state: State, machine: str) -> list[ReplicaState]:
    """Replicas whose machine a trainer may take after it lost this one, least busy first."""
    up = [replica for replica in state.fleet.up() if replica.member.machine != machine]
    if not state.spec.machines or len(up) < 2:
        return []
    alike = {pool.name for pool in state.spec.pools if pool.standby} if state.spec.pools else {""}
    fit = [replica for replica in up if replica.member.pool in alike and _fits(state, replica, up)]
    return sorted(fit, key=lambda replica: replica.in_flight)


def _fits(state: State, replica: ReplicaState, up: list[ReplicaState]) -> bool:
    member, version = replica.member, replica.version
    if replica.cells or member.hybrid or member.health is not Health.UP:
        return False
    if not member.machine or member.machine in state.members.given_up:
        return False
    others = any(other.version == version for other in up if other is not replica)
    return others or version in (None, state.trainer.published)
