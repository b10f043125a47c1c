"""The common slices of two layouts: every tensor cut where either layout cuts it (StaleFlow, Appendix A.2).

A slice lies inside one piece of each rank that holds any of it, so it can be sent and received in one go.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tailrace.paramserver.errors import LayoutInvalid, LayoutMismatch
from tailrace.paramserver.layout.boxes import Box, Grid, volume
from tailrace.paramserver.layout.sharding import MAX_CELLS, Layout
from tailrace.paramserver.manifest import DTYPES


class Slice(NamedTuple):
    """A box of a tensor that travels as one.

    Args:
        tensor: its name.
        box: the elements.
        nbytes: its size.
    """

    tensor: str
    box: Box
    nbytes: int


class NeededSlice(NamedTuple):
    """A slice, who holds it and who needs it: indices of `Layout.groups` of the source and of the target."""

    slice: Slice
    holders: tuple[int, ...]
    needers: tuple[int, ...]


Held = tuple[tuple[int, Box], ...]  # (index of the group, box) of one tensor


def common_slices(source: Layout, target: Layout) -> list[NeededSlice]:
    """All slices that the target needs, in order of tensors and, within one, of boxes.

    Raises:
        LayoutMismatch: the two layouts are not of one model; names the tensor.
        LayoutInvalid: the layouts together cut a tensor into more than a million cells.
    """
    check_same_model(source, target)
    holds, needs = _held(source), _held(target)
    # Layers of one kind are cut alike: their cells are worked out once.
    known: dict[tuple[tuple[int, ...], Held, Held], list[tuple[Box, int, tuple[int, ...], tuple[int, ...]]]] = {}
    found = []
    for name, dtype, shape in source.tensors:
        key = (shape, tuple(holds[name]), tuple(needs[name]))
        if key not in known:
            known[key] = _cells(name, *key)
        size = DTYPES[dtype]
        found += [
            NeededSlice(Slice(name, box, elements * size), holders, needers)
            for box, elements, holders, needers in known[key]
        ]
    return found


def check_same_model(source: Layout, target: Layout) -> None:
    """Check that two layouts are of one model.

    Raises:
        LayoutMismatch: a tensor is missing in one of them, or its dtype or shape differs.
    """
    if source.tensors == target.tensors:
        return
    for name in sorted(source.tensor.keys() ^ target.tensor.keys()):
        where, other = ("source", "target") if name in source.tensor else ("target", "source")
        raise LayoutMismatch(f"{name!r}: found in the {where} layout only, expected in the {other} layout too")
    for tensor in source.tensors:
        other_tensor = target.tensor[tensor.name]
        if tensor != other_tensor:
            raise LayoutMismatch(
                f"{tensor.name!r}: found {other_tensor.dtype} {other_tensor.shape} in the target layout, "
                f"expected {tensor.dtype} {tensor.shape} as in the source layout"
            )


def _held(layout: Layout) -> dict[str, list[tuple[int, Box]]]:
    held: dict[str, list[tuple[int, Box]]] = {tensor.name: [] for tensor in layout.tensors}
    for number, (shard, _) in enumerate(layout.groups):
        for name, found in shard.pieces.items():
            held[name] += [(number, piece.box) for _, piece in found]
    return held


def _cells(
    name: str, shape: tuple[int, ...], holds: Held, needs: Held
) -> list[tuple[Box, int, tuple[int, ...], tuple[int, ...]]]:
    if 0 in shape:
        return []
    grid = Grid(shape, [box for _, box in (*holds, *needs)])
    if grid.cells > MAX_CELLS:
        raise LayoutInvalid(f"{name!r}: the two layouts cut it into {grid.cells} cells, expected at most {MAX_CELLS}")
    needers, holders = _owners(grid, needs), _owners(grid, holds)
    return [
        (box := grid.box(cell), volume(box), tuple(holders[cell]), tuple(groups))
        for cell, groups in sorted(needers.items())
    ]


def _owners(grid: Grid, held: Sequence[tuple[int, Box]]) -> dict[tuple[int, ...], list[int]]:
    owners: dict[tuple[int, ...], list[int]] = {}
    for group, box in held:
        for cell in grid.within(box):
            owners.setdefault(cell, []).append(group)
    return owners
