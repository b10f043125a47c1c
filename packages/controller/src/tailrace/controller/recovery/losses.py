"""What is lost with a member that goes down, and what becomes of its work.

Invariant: what a member had to do is afterwards in the pool, or waits for the member that takes its place. Nobody is waited for
who cannot answer any more.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from tailrace import contracts as c
from tailrace.controller.ledger import Ledger
from tailrace.controller.members import DATA, ENVIRONMENT, RANKER, REPLICA, SCORER, TRAINER, MemberState
from tailrace.controller.state import State
from tailrace.controller.trajectories import OPEN, GroupState, Phase, TrajectoryState


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
    else:  # a relay: pulls that failed because of it say nothing about the replicas
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


def survived(
    state: State, event: c.Up, resumes_at: int | None, completed: Callable[[TrajectoryState], None]
) -> list[TrajectoryState]:
    """Take over what the store reports that it holds after the driver's death.

    After a machine's crash it may lack trajectories whose rewards the log has: their groups begin anew. It may also
    have complete what the log does not know as begun: that begins anew.

    Args:
        state: the state, whose environments' sessions are forgotten already.
        event: the data role's.
        resumes_at: the version to which the store fell back.
        completed: told each trajectory of whose end the log did not know, in the order in which the store got them.

    Returns:
        The trajectories that begin anew. The caller has the store drop what it has of them.
    """
    held, ledger = dict.fromkeys(event.held), state.ledger
    torn = _torn(ledger, held, resumes_at)
    if torn:
        ledger.roll_back(state.trainer.first if resumes_at is None else resumes_at)
    anew = [trajectory for group in torn for trajectory in ledger.start_over(group, state.trainer.first)]
    again = {trajectory.id for trajectory in anew}
    for trajectory in list(ledger.trajectories.values()):
        if trajectory.phase is Phase.SCORED or trajectory.id in ledger.discarding or trajectory.id in again:
            held.pop(trajectory.id, None)
            continue
        if trajectory.id not in held:
            ledger.restarted(trajectory, *event.partial.get(trajectory.id, (None, 0)))
    for name in held:
        complete = ledger.trajectories.get(name)
        if complete is not None and complete.version is None:
            anew.append(complete)  # the log lost with which version it was begun
        elif complete is not None and ledger.finished(complete, complete.tokens, state.trainer.version):
            completed(complete)
    if state.scoring.up:
        state.scoring.came_up()
    return anew


def _torn(ledger: Ledger, held: Collection[str], resumes_at: int | None) -> list[GroupState]:
    """The groups of which the store lacks a trajectory with a reward, and that will be trained on or were after a version."""
    torn: dict[int, GroupState] = {}
    for trajectory in ledger.trajectories.values():
        if trajectory.phase is Phase.SCORED and trajectory.purpose is c.Purpose.TRAIN and trajectory.id not in held:
            group = ledger.groups[trajectory.group]
            if group.phase in OPEN or resumes_at is None or group.consumed_for > resumes_at:
                torn[group.index] = group
    return list(torn.values())
