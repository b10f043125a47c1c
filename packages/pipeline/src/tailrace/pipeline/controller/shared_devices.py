"""The devices on which each replica stands, and the trainer's cells with it, where they share them.

    device   0   1   2   3   4   5   6   7
    cell     0   0   1   1   2   2   3   3      cell_devices = 2
    replica  r0      r1  r2  r3                 of 2, 1, 1 and 4 devices: on the cells 0; 1; 1; 2 and 3

Devices are numbered, and a replica has as many in a row as its engine spans, beginning at a multiple of their number. So a
replica stands on no more cells than it must, and those that shrink leave room for as many of their new size. Hosts give devices
no names: that a number is a certain device is a convention, which holds where all devices are alike.
"""

from __future__ import annotations

from collections.abc import Set
from itertools import count


def devices_for(size: int, taken: Set[int], own: tuple[int, ...] = ()) -> tuple[int, ...]:
    """The devices of a replica of a new size: the row around its own if nobody else has any of it, else the first free row.

    Args:
        size: how many it spans, a power of two.
        taken: devices of the other replicas that stay.
        own: devices that it has now.

    Returns:
        `size` numbers in a row, rising, the first of them a multiple of `size`.
    """
    if own:
        around = _row(own[0], size)
        if taken.isdisjoint(around):
            return around
    return next(row for first in count(0, size) if taken.isdisjoint(row := _row(first, size)))


def cells_on(devices: tuple[int, ...], cell_devices: int, cells: int) -> tuple[int, ...]:
    """The trainer's cells that stand on devices, wholly or in part, rising.

    Devices beyond those of the last cell begin with the first one again: replicas that a run was given later share them too.

    Args:
        cell_devices: devices of each cell.
        cells: how many cells there are.
    """
    return tuple(sorted({device // cell_devices % cells for device in devices}))


def _row(device: int, size: int) -> tuple[int, ...]:
    first = device - device % size
    return tuple(range(first, first + size))
