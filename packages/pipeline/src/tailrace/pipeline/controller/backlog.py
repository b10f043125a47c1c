"""The first part of a pool: as much as one decision looks at."""

from __future__ import annotations

from tailrace.contracts import Pool, TrajectoryView, Unstarted


def first_of(pool: Pool, most: int) -> tuple[Pool, bool]:
    """The first trajectories of a pool, whole groups where they have not started; and whether anything is left out.

    Args:
        most: how many; the last group may exceed it.
    """
    if sum(map(len, pool.values())) <= most:
        return pool, False
    first: dict[int | None, dict[str, TrajectoryView] | Unstarted] = {}
    left = most
    for version, level in pool.items():
        if left <= 0:
            break
        if len(level) <= left:
            first[version] = level  # type: ignore[assignment]
        elif isinstance(level, Unstarted):
            some = Unstarted()
            for group, members in level.groups.items():
                if len(some) >= left:
                    break
                some.add(group, members)
            first[version] = some
        else:
            first[version] = dict(
                zip(level, (level[name] for name, _ in zip(level, range(left), strict=False)), strict=False)
            )
        left -= len(first[version])
    return first, True
