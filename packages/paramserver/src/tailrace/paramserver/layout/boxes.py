"""Boxes of indices: per dimension [start, stop). The box of a tensor without dimensions is `()`, one element."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import product

Box = tuple[tuple[int, int], ...]


def whole(shape: Sequence[int]) -> Box:
    """The box of all elements of a shape."""
    return tuple((0, size) for size in shape)


def extent(box: Box) -> tuple[int, ...]:
    """Size of a box in each dimension."""
    return tuple(stop - start for start, stop in box)


def volume(box: Box) -> int:
    """Number of elements of a box."""
    return math.prod(stop - start for start, stop in box)


def contains(outer: Box, inner: Box) -> bool:
    """Whether `inner` lies in `outer`."""
    return all(a <= c and d <= b for (a, b), (c, d) in zip(outer, inner, strict=True))


def intersects(first: Box, second: Box) -> bool:
    """Whether two boxes that are not empty share an element."""
    return all(a < d and c < b for (a, b), (c, d) in zip(first, second, strict=True))


def find_overlap(boxes: Sequence[Box]) -> tuple[int, int] | None:
    """Positions of two boxes that share an element, or None. The boxes are not empty."""
    if len(boxes) < 2:
        return None
    if not boxes[0]:
        return (0, 1)
    # Sweep along the dimension that separates the boxes best: with fused parameters that is a line of blocks.
    axis = max(range(len(boxes[0])), key=lambda dimension: len({box[dimension][0] for box in boxes}))
    open_boxes: list[int] = []
    for position in sorted(range(len(boxes)), key=lambda index: boxes[index][axis]):
        box = boxes[position]
        open_boxes = [other for other in open_boxes if boxes[other][axis][1] > box[axis][0]]
        for other in open_boxes:
            if intersects(boxes[other], box):
                return (other, position)
        open_boxes.append(position)
    return None


class Grid:
    """A shape cut in every dimension wherever one of some boxes starts or stops.

    Each of these boxes consists of whole cells, so a cell lies inside a box or outside of it.
    """

    def __init__(self, shape: Sequence[int], boxes: Iterable[Box]) -> None:
        marks: list[set[int]] = [{0, size} for size in shape]
        for box in boxes:
            for mark, edges in zip(marks, box, strict=True):
                mark.update(edges)
        self.cuts: list[list[int]] = [sorted(mark) for mark in marks]

    @property
    def cells(self) -> int:
        """Number of cells."""
        return math.prod(len(cut) - 1 for cut in self.cuts)

    def within(self, box: Box) -> Iterator[tuple[int, ...]]:
        """The cells of one of the boxes, in row-major order."""
        return product(
            *(
                range(bisect_left(cut, start), bisect_left(cut, stop))
                for cut, (start, stop) in zip(self.cuts, box, strict=True)
            )
        )

    def box(self, cell: tuple[int, ...]) -> Box:
        """The elements of a cell."""
        return tuple((cut[index], cut[index + 1]) for cut, index in zip(self.cuts, cell, strict=True))

    def first_outside(self, boxes: Iterable[Box]) -> Box | None:
        """The first cell that is in none of the boxes, or None."""
        missing = set(product(*(range(len(cut) - 1) for cut in self.cuts)))
        for box in boxes:
            missing.difference_update(self.within(box))
        return self.box(min(missing)) if missing else None
