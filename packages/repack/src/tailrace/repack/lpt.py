"""Longest processing time first (Graham, 1969; StreamRL, section 5.3): the order in which a replica starts its trajectories."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapreplace

from tailrace.repack.errors import LoadError


@dataclass(frozen=True, slots=True)
class Schedule:
    """The order in which trajectories start, and when the last one ends.

    Args:
        order: positions in the lengths, longest first; equal lengths in the order given.
        makespan: tokens that the busiest slot decodes.
    """

    order: tuple[int, ...]
    makespan: float


def lpt(lengths: Sequence[float], slots: int) -> Schedule:
    """Start the longest trajectory that waits whenever a slot of the decode batch is free (StreamRL, section 5.3).

    The makespan is at most 4/3 - 1/(3 slots) of the smallest possible.

    Args:
        lengths: tokens of each trajectory, at least 1.
        slots: trajectories that decode together, at least 1.

    Raises:
        LoadError: there are no lengths, or a value is out of its range.
    """
    check_count("slots", slots)
    values = checked_lengths(lengths, "lengths")
    order = longest_first(values)
    queues = spread(order, values, [0] * min(slots, len(values)))
    return Schedule(tuple(order), max(sum(values[position] for position in queue) for queue in queues))


def longest_first(lengths: Sequence[float]) -> list[int]:
    """Positions by falling length; equal lengths in the order given."""
    return sorted(range(len(lengths)), key=lengths.__getitem__, reverse=True)


def spread(
    order: Sequence[int],
    lengths: Sequence[float],
    busy: Sequence[float],
    pace: Sequence[float] | None = None,
) -> list[list[int]]:
    """Give each trajectory in turn to whoever has least to do; the first among equals.

    Given longest first, no two of equal pace that began with nothing differ by more than one trajectory's length.

    Args:
        order: positions in `lengths`, in the order in which they are given out.
        lengths: tokens of each trajectory.
        busy: what each has to do before, in tokens, or in seconds if there is a `pace`.
        pace: seconds for each token of each; None: they are alike, and work is counted in tokens.

    Returns:
        The positions that each got, in the order of `order`.
    """
    queues: list[list[int]] = [[] for _ in busy]
    heap = sorted((work, index) for index, work in enumerate(busy))
    for position in order:
        work, index = heap[0]
        queues[index].append(position)
        length = lengths[position]
        heapreplace(heap, (work + (length if pace is None else length * pace[index]), index))
    return queues


def checked_lengths(lengths: Sequence[float], name: str) -> list[float]:
    """The lengths as a list.

    Raises:
        LoadError: there are none, or one is not a finite number of at least 1.
    """
    values = list(lengths)
    if not values:
        raise LoadError(f"found no {name}, expected at least one trajectory")
    try:
        fine = math.isfinite(sum(values)) and min(values) >= 1
    except TypeError:
        fine = False
    if not fine:
        for position, value in enumerate(values):
            if not (isinstance(value, int | float) and math.isfinite(value) and value >= 1):
                raise LoadError(f"found {name}[{position}]={value!r}, expected a finite number of tokens of at least 1")
    return values


def check_count(name: str, value: int, least: int = 1) -> None:
    """Refuse what is not a whole number of at least `least`.

    Raises:
        LoadError: it is not.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise LoadError(f"found {name}={value!r}, expected a whole number of at least {least}")
