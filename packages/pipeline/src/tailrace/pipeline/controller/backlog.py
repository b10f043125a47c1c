"""Limits one decision to the first part of a large pool, and to the replicas that may be given it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from tailrace.contracts import Pool, ReplicaView, TrajectoryView, Unstarted


def first_of(pool: Pool, most: int) -> Pool:
    """The first trajectories of a pool; groups that have not started are not split.

    Args:
        pool: the pool.
        most: number of trajectories; the last group may exceed it.
    """
    first: dict[int | None, dict[str, TrajectoryView] | Unstarted] = {}
    left = most
    for version, level in pool.items():
        if left <= 0:
            break
        if isinstance(level, Unstarted):
            some = Unstarted()
            for group, members in level.groups.items():
                some.add(group, members, level.predicted.get(group), level.left.get(group))
                left -= len(members)
                if left <= 0:
                    break
            first[version] = some
        else:
            first[version] = dict(islice(level.items(), left))
            left -= len(level)
    return first


def in_turn(views: Sequence[ReplicaView], most: int, turn: int) -> tuple[int, int]:
    """Leave only as many replicas open for new groups as are needed for a part of the pool.

    Each of them then gets as much as it would from the whole pool, and all get their turn.

    Args:
        views: the replicas' views; they are changed, so they must not be in use yet.
        most: trajectories for which there must be room.
        turn: index of the replica whose turn is first.

    Returns:
        Number of trajectories of the pool to look at (the open replicas' room, but at least `most`), and number of replicas
        that had their turn.
    """
    left, passed = most, 0
    while passed < len(views) and left > 0:
        view = views[(turn + passed) % len(views)]
        left -= room(view) if view.open else 0
        passed += 1
    for waits in range(passed, len(views)):
        object.__setattr__(views[(turn + waits) % len(views)], "open", False)
    return max(most, most - left), passed


def room(view: ReplicaView) -> int:
    """Number of trajectories that a replica may still be given."""
    serves = view.version is not None and not view.pulling
    return max(0, view.capacity - view.held) if serves else 0
