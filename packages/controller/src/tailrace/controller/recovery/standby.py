"""The replica whose machine a trainer may take that lost its own: warm standbys (RobustRL, section 5.1.3).

    trainer's machine is gone ──► recovery says STANDBY ──► the trainer starts on a replica's machine
                                                       └──► what that replica had goes on elsewhere; it starts anew elsewhere

A replica may stand in that stands on no device of the trainer, at the trainer's site, on devices of its kind; that is not the
last one to generate; and of whose version there is another holder, if it is not the one that is published.

Where members have devices of their own, as many replicas of one machine stand in as have those that the trainer lost.
"""

from __future__ import annotations

from tailrace.contracts import Health, ProcessSeat
from tailrace.controller.fleet import ReplicaState
from tailrace.controller.members import TRAINER
from tailrace.controller.state import State

_ROUNDING = 1e-6


def standbys(state: State, machine: str) -> list[list[ReplicaState]]:
    """Replicas that may give a trainer their machine after it lost this one, by machine; those with least to do first."""
    up = [replica for replica in state.fleet.up() if replica.member.machine != machine]
    if len(up) < 2:
        return []
    alike = {pool.name for pool in state.spec.pools if pool.standby} if state.spec.pools else {""}
    trainer = state.members.get(TRAINER)
    seats = () if trainer is None else trainer.seats
    # A trainer that was lost while it started had no devices there yet: it needs at most those of before.
    needed = sum(map(_devices, [seat for seat in seats if seat.machine == machine] or seats))
    fit = [replica for replica in up if replica.member.pool in alike and _fits(state, replica, up)]
    by_machine: dict[str, list[ReplicaState]] = {}
    for replica in sorted(fit, key=lambda replica: replica.in_flight):
        by_machine.setdefault(replica.member.machine, []).append(replica)
    found = [taken for here in by_machine.values() if (taken := _enough(here, needed)) and len(taken) < len(up)]
    return sorted(found, key=lambda taken: sum(replica.in_flight for replica in taken))


def _enough(here: list[ReplicaState], needed: float) -> list[ReplicaState]:
    """The first replicas of a machine that have as many devices as are needed, one at least; none if all have too few."""
    had = 0.0
    for count, replica in enumerate(here, 1):
        had += sum(_devices(seat) for seat in replica.member.seats)
        if had >= needed - _ROUNDING:
            return here[:count]
    return []


def _devices(seat: ProcessSeat) -> float:
    return len(seat.devices) * seat.share


def _fits(state: State, replica: ReplicaState, up: list[ReplicaState]) -> bool:
    member, version = replica.member, replica.version
    if replica.cells or member.hybrid or member.health is not Health.UP:
        return False
    if not member.machine or member.machine in state.members.given_up:
        return False
    others = any(other.version == version for other in up if other is not replica)
    return others or version in (None, state.trainer.published)
