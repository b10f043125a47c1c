"""Which trajectory a replica takes next when a place in its batch is free. Pure; the same for modelled and for real replicas.

batch ──► order, or a plan of queues ──► Feed ──take(replica, held)──► position of a trajectory, or None
                                           ▲ asked for the replica with the fewest first, until all places are taken
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Protocol


class Feed(Protocol):
    """What still waits of a batch. Each position is given out once."""

    def take(self, replica: int, held: int) -> int | None:
        """The next trajectory for a replica that has a place free and runs `held` others; None: none for this replica now."""
        ...


class Shared:
    """One queue for all replicas: whoever has a place free takes the first. With places for all, each gets as many.

    Args:
        order: positions, the first ones first.
    """

    def __init__(self, order: Iterable[int]) -> None:
        self._waiting = deque(order)

    def take(self, replica: int, held: int) -> int | None:
        """The first that waits."""
        del replica, held
        return self._waiting.popleft() if self._waiting else None


class Own:
    """A queue for each replica.

    Args:
        queues: of each replica, positions, the first ones first.
        lengths: that are predicted, by which a replica without work takes the longest that waits for others; None: it takes
            nothing.
    """

    def __init__(self, queues: Sequence[Iterable[int]], lengths: Sequence[float] | None = None) -> None:
        self._queues, self._lengths = [deque(queue) for queue in queues], lengths

    def take(self, replica: int, held: int) -> int | None:
        """The first of the replica's own; of others only if it would stand still."""
        if self._queues[replica]:
            return self._queues[replica].popleft()
        if held or self._lengths is None:
            return None
        waiting = [queue for queue in self._queues if queue]
        lengths = self._lengths
        return max(waiting, key=lambda queue: lengths[queue[0]]).popleft() if waiting else None


def next_placements(feed: Feed, held: Sequence[int], places: int) -> list[tuple[int, int]]:
    """(replica, position) of all that can be placed now, the replica with the fewest first.

    Args:
        feed: what waits.
        held: trajectories that each replica runs.
        places: most that one runs.
    """
    counts, placed = list(held), []
    open_ = {replica for replica, count in enumerate(counts) if count < places}
    while open_:
        replica = min(open_, key=lambda each: (counts[each], each))
        position = feed.take(replica, counts[replica])
        if position is None:
            open_.discard(replica)
            continue
        placed.append((replica, position))
        counts[replica] += 1
        if counts[replica] >= places:
            open_.discard(replica)
    return placed
