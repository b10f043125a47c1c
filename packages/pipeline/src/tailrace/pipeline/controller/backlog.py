"""The first part of a pool, and who may be given it: as much as one decision looks at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
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


def in_turn(views: Sequence[ReplicaView], most: int, turn: int) -> tuple[list[ReplicaView], int, int]:
    """Replicas, of which only some may be given new groups now: as many as have room for a part of the pool.

    So each of them gets as much as it would of the whole pool at once, and all have their turn.

    Args:
        most: trajectories that there is to be room for.
        turn: index of the replica that is first in turn.

    Returns:
        The views, how much room those have, at least `most`, and the index of the one that is next in turn.
    """
    left, after, now = most, turn, set[int]()
    for index in (*range(turn, len(views)), *range(turn)):
        if left <= 0:
            break
        after = index + 1
        if views[index].open and room(views[index]):
            left -= room(views[index])
            now.add(index)
    shown = [replace(view, open=view.open and index in now) for index, view in enumerate(views)]
    return shown, max(most, most - left), after % len(views)


def room(view: ReplicaView) -> int:
    """Trajectories that a replica may still be given."""
    serves = view.version is not None and not view.pulling
    return max(0, view.capacity - view.in_flight) if serves else 0
