"""What the prefix caches of replicas probably have of trajectories that are routed.

An engine keeps the keys and values of a trajectory that leaves it (a turn ended, it was interrupted) and of a prompt that a
group shares, until it loads weights or needs the room. No engine says what it still has. So this is what it must have if it
forgets what was used least recently: what somebody left is kept until the engine has taken in as many tokens as were free then.

What is left where stands with each trajectory and each group (`cached`), so that it goes with them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf

from tailrace.contracts import Purpose
from tailrace.controller.fleet import Replicas, ReplicaState
from tailrace.controller.ledger import Ledger
from tailrace.controller.trajectories import GroupState, Left, TrajectoryState


def begins(ledger: Ledger, replica: ReplicaState, states: Sequence[TrajectoryState]) -> None:
    """Note that trajectories are routed to a replica.

    Each takes room for all its tokens, but for a prompt that another holds there: what the cache had of it was free before.
    """
    for state in states:
        if state.purpose is Purpose.TRAIN:
            group, prompt = ledger.groups[state.group], ledger.prompts.of(state.prompt)
            _leave(group.cached, replica, prompt)
            replica.filled += state.tokens if _holds(group, replica) else prompt + state.tokens


def leaves(ledger: Ledger, replica: ReplicaState, state: TrajectoryState) -> None:
    """Note that a trajectory left a replica unfinished, whose cache has all its tokens."""
    if state.purpose is Purpose.TRAIN:
        _leave(state.cached, replica, ledger.prompts.of(state.prompt) + state.tokens)


def prefixes(ledger: Ledger, fleet: Replicas, trajectory: str, group: int) -> Mapping[str, int]:
    """How many tokens of a trajectory each replica has; only those that have any."""
    state, siblings = ledger.trajectories.get(trajectory), ledger.groups.get(group)
    found: dict[str, int] = {}
    if siblings is not None:
        found = {name: _shared(siblings, fleet.replicas[name]) for name in siblings.cached}
    if state is not None:
        for name in state.cached:
            found[name] = max(found.get(name, 0), _left(state.cached, fleet.replicas[name]))
    return {name: tokens for name, tokens in found.items() if tokens}


def _leave(cached: dict[str, Left], replica: ReplicaState, tokens: int) -> None:
    room = (1.0 - replica.kv) * replica.kv_capacity_tokens if replica.kv_capacity_tokens else inf
    cached[replica.id] = Left(tokens, replica.emptied, replica.filled + room)


def _left(cached: Mapping[str, Left], replica: ReplicaState) -> int:
    left = cached.get(replica.id)
    if left is None or left.emptied != replica.emptied or replica.filled > left.until:
        return 0
    return left.tokens


def _shared(group: GroupState, replica: ReplicaState) -> int:
    """Tokens of a group's prompt that a replica has: for certain while one of its trajectories runs there."""
    left = group.cached.get(replica.id)
    if left is None or left.emptied != replica.emptied:
        return 0
    return left.tokens if _holds(group, replica) else _left(group.cached, replica)


def _holds(group: GroupState, replica: ReplicaState) -> bool:
    return any(state.replica == replica.id for state in group.states)
