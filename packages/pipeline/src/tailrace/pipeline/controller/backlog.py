"""The first part of a pool, and who may be given it: as much as one decision looks at."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from tailrace.contracts import Pool, ReplicaView, TrajectoryView, Unstarted


def first_of(pool: Pool, most: int) -> Pool:
    """The first trajectories of a pool, whole groups where they have not started.

    Args:
        most: how many; the last group may exceed it.
    """
    first: dict[int | None, dict[str, TrajectoryView] | Unstarted] = {}
    left = most
    for version, level in pool.items():
        if left <= 0:
            break
        if isinstance(level, Unstarted):
            some = Unstarted()
            for group, members in level.groups.items():
                some.add(group, members)
                left -= len(members)
                if left <= 0:
                    break
            first[version] = some
        else:
            first[version] = dict(islice(level.items(), left))
            left -= len(level)
    return first


def in_turn(views: Sequence[ReplicaView], most: int, turn: int) -> tuple[int, int]:
    """Leave only some replicas open for new groups: as many as have room for a part of the pool.

    So each of them gets as much as it would of the whole pool at once, and all have their turn.

    Args:
        views: nobody else has seen them yet.
        most: trajectories that there is to be room for.
        turn: index of the replica that is first in turn.

    Returns:
        How much room those that are open have, at least `most`; and how many replicas had their turn.
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
    """Trajectories that a replica may still be given."""
    serves = view.version is not None and not view.pulling
    return max(0, view.capacity - view.in_flight) if serves else 0
