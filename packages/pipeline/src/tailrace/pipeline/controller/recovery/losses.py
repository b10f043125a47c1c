"""What is lost with a member that goes down, and what becomes of its work.

Invariant: what a member had to do is afterwards in the pool, or waits for the member that takes its place. Nobody is waited for
who cannot answer any more.
"""

from __future__ import annotations

from collections.abc import Callable

from tailrace import contracts as c
from tailrace.pipeline.controller.members import DATA, ENVIRONMENT, RANKER, RELAY, REPLICA, SCORER, TRAINER, MemberState
from tailrace.pipeline.controller.state import State
from tailrace.pipeline.controller.trajectories import Phase


def lost(state: State, member: MemberState) -> None:
    """Note that a member is gone with its state, except the data role's store, which survives."""
    if member.role == REPLICA:
        _replica(state, member.id)
    elif member.role == TRAINER:
        state.trainer.went_down()
    elif member.role == SCORER:
        state.scoring.went_down()
    elif member.role == RANKER:
        state.ledger.predictions.nobody_answers()
    elif member.role == DATA:
        state.ledger.prompts.nobody_answers()
    elif member.role == ENVIRONMENT:
        state.sessions.went_down(member.id)
    elif member.role == RELAY:  # pulls that failed because of it say nothing about the replicas
        for replica in state.fleet.replicas.values():
            replica.failed_pulls = 0


def _replica(state: State, name: str) -> None:
    """Put a replica's trajectories back in the pool, and cancel moves to it."""
    ledger, replica = state.ledger, state.fleet.replicas[name]
    for moving in [*ledger.moving]:
        if ledger.trajectories[moving].destination == name:
            state.unbind(ledger.trajectories[moving])
    for trajectory in tuple(replica.assigned):
        state.unbind(ledger.trajectories[trajectory])
        ledger.returned(trajectory, None)
    replica.reset()


def survived(state: State, event: c.Up, generated: Callable[[int], None]) -> None:
    """Take over what the store reports that it holds after the driver's death.

    Args:
        state: the state, whose environments' sessions are forgotten already.
        event: the data role's.
        generated: told the group of each complete trajectory, in the order in which the store got them.
    """
    held, ledger = dict.fromkeys(event.held), state.ledger
    for trajectory in list(ledger.trajectories.values()):
        if trajectory.phase is Phase.SCORED or trajectory.id in ledger.discarding:
            held.pop(trajectory.id, None)
            continue
        ledger.orphaned(trajectory)
        if trajectory.id not in held:
            ledger.restarted(trajectory, *event.partial.get(trajectory.id, (None, 0)))
    for name in held:
        complete = ledger.trajectories.get(name)
        if complete is not None:
            ledger.finished(complete, complete.tokens, state.trainer.version)
            if complete.purpose is c.Purpose.TRAIN:
                generated(complete.group)
    if state.scoring.up:
        state.scoring.came_up()
