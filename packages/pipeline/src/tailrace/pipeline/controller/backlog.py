"""The first part of a pool: as much as one decision looks at."""

from __future__ import annotations

from itertools import islice

from tailrace.contracts import Pool, TrajectoryView, Unstarted


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
