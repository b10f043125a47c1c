"""What a rank of a device mesh holds of a tensor, by its placements: the arithmetic of torch's DTensor, without torch.

A mesh dimension either replicates the tensor or cuts one of its dimensions as `torch.chunk` does: pieces of
ceil(size / parts), the last ones shorter or empty. Mesh dimensions apply from left to right. FSDP2 over tensor parallelism
cuts a dimension that is already cut: `interleave` is torch's `_StridedShard.split_factor`, and leaves a rank with several
intervals of one dimension.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import NamedTuple

from tailrace.paramserver.layout.boxes import Box


class Cut(NamedTuple):
    """A mesh dimension that cuts a dimension of the tensor.

    Args:
        dimension: the tensor's dimension, counted from the front.
        interleave: into how many parts the dimension is cut, and each of them over the mesh dimension; 1 for a plain cut.
    """

    dimension: int
    interleave: int = 1


Interval = tuple[int, int]


def chunk(size: int, parts: int, index: int) -> Interval:
    """The part of a dimension that `torch.chunk` gives to one of several parts."""
    step = -(-size // parts)
    return min(size, step * index), min(size, step * (index + 1))


def held_intervals(
    shape: Sequence[int], mesh: Sequence[int], coordinate: Sequence[int], placements: Sequence[Cut | None]
) -> list[list[Interval]]:
    """For each dimension of a tensor the intervals that a rank holds, in the order in which they lie in its local tensor.

    Args:
        shape: the tensor's shape.
        mesh: size of each mesh dimension.
        coordinate: the rank's coordinate in the mesh.
        placements: how each mesh dimension cuts the tensor; None if it replicates it.
    """
    held: list[list[Interval]] = [[(0, size)] if size else [] for size in shape]
    for parts, index, cut in zip(mesh, coordinate, placements, strict=True):
        if cut is None:
            continue
        intervals = held[cut.dimension]
        size = sum(stop - start for start, stop in intervals)
        kept: list[Interval] = []
        for block in range(cut.interleave):
            start, stop = chunk(size, cut.interleave, block)
            first, last = chunk(stop - start, parts, index)
            kept += _part(intervals, start + first, start + last)
        held[cut.dimension] = kept
    return held


def local_boxes(intervals: Sequence[Sequence[Interval]]) -> Iterator[tuple[Box, tuple[int, ...]]]:
    """The boxes that intervals in each dimension make, and the position of each in the local tensor."""
    placed: list[list[tuple[Interval, int]]] = []
    for held in intervals:
        at, line = 0, []
        for start, stop in held:
            line.append(((start, stop), at))
            at += stop - start
        placed.append(line)
    for choice in product(*placed):
        yield tuple(interval for interval, _ in choice), tuple(at for _, at in choice)


def _part(intervals: Sequence[Interval], first: int, last: int) -> list[Interval]:
    """The elements from `first` to `last` of the sequence that the intervals make when they are laid end to end."""
    found: list[Interval] = []
    at = 0
    for start, stop in intervals:
        low, high = max(first, at), min(last, at + stop - start)
        if low < high:
            begin, end = start + low - at, start + high - at
            if found and found[-1][1] == begin:
                found[-1] = (found[-1][0], end)
            else:
                found.append((begin, end))
        at += stop - start
    return found
