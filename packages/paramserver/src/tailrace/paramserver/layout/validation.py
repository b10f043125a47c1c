"""What makes a layout valid. `Layout` calls it; nothing else needs to."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Protocol

from tailrace.paramserver.layout.boxes import Box, Grid, contains, extent, find_overlap, volume, whole
from tailrace.paramserver.layout.errors import LayoutInvalid
from tailrace.paramserver.layout.shards import GlobalTensor, LocalBuffer, Piece, Shard
from tailrace.paramserver.manifest import DTYPES

MAX_CELLS = 1_000_000  # of one tensor's grid; a tensor cut finer than that is a mistake, and would take minutes
_MAX_NAME = 1024
_MAX_DIMENSIONS = 16
_MAX_ELEMENTS = 2**59  # times 8 bytes is within a signed 64-bit size


class Checked(Protocol):
    """A layout."""

    @property
    def tensors(self) -> tuple[GlobalTensor, ...]:
        """The model."""
        ...

    @property
    def shards(self) -> Mapping[str, Shard]:
        """What each rank holds."""
        ...

    @property
    def groups(self) -> tuple[tuple[Shard, tuple[str, ...]], ...]:
        """Every shard that differs from the others, and the ranks that hold it."""
        ...


def check(layout: Checked) -> None:
    """Raise the `LayoutInvalid` that describes the first fault of a layout."""
    if not layout.tensors or not layout.shards:
        raise LayoutInvalid(
            f"found {len(layout.tensors)} tensors on {len(layout.shards)} ranks, expected at least one of each"
        )
    tensors: dict[str, GlobalTensor] = {}
    for tensor in layout.tensors:
        _check_memory(tensor.name, tensor.dtype, tensor.shape, "the model")
        if tensor.name in tensors:
            raise LayoutInvalid(f"found the tensor {tensor.name!r} twice, expected unique names")
        tensors[tensor.name] = tensor
    held: dict[str, set[Box]] = {name: set() for name in tensors}
    for shard, ranks in layout.groups:
        _check_shard(shard, ranks[0], tensors, held)
    for rank in layout.shards:
        _check_name(rank, "a rank's name")
    # Layers of one kind are cut alike, so the same question comes up once per layer.
    answers: dict[tuple[tuple[int, ...], frozenset[Box]], Box | None] = {}
    for name, tensor in tensors.items():
        key = (tensor.shape, frozenset(held[name]))
        if key not in answers:
            answers[key] = _uncovered(name, *key)
        if answers[key] is not None:
            raise LayoutInvalid(f"{name!r} {tensor.shape}: no rank holds {answers[key]}, expected every element held")


def _uncovered(name: str, shape: tuple[int, ...], boxes: frozenset[Box]) -> Box | None:
    if 0 in shape or whole(shape) in boxes:
        return None
    grid = Grid(shape, boxes)
    if grid.cells > MAX_CELLS:
        raise LayoutInvalid(f"{name!r}: cut into {grid.cells} cells over all ranks, expected at most {MAX_CELLS}")
    return grid.first_outside(boxes)


def _check_shard(shard: Shard, rank: str, tensors: Mapping[str, GlobalTensor], held: Mapping[str, set[Box]]) -> None:
    previous = None
    for buffer in shard.buffers:
        if buffer.name == previous:
            raise LayoutInvalid(f"rank {rank!r}: found the buffer {buffer.name!r} twice, expected unique names")
        previous = buffer.name
        _check_memory(buffer.name, buffer.dtype, buffer.shape, f"rank {rank!r}")
        places = [_check_piece(buffer, piece, rank, tensors) for piece in buffer.pieces]
        if pair := find_overlap(places):
            first, second = (buffer.pieces[index] for index in pair)
            raise LayoutInvalid(
                f"rank {rank!r}, buffer {buffer.name!r}: {first.tensor!r} {first.box} and {second.tensor!r} {second.box} "
                "share memory, expected a place for each"
            )
    for name, found in shard.pieces.items():
        boxes = [piece.box for _, piece in found]
        if pair := find_overlap(boxes):
            raise LayoutInvalid(
                f"{name!r} on rank {rank!r}: the boxes {boxes[pair[0]]} and {boxes[pair[1]]} overlap, "
                "expected each element at most once on a rank"
            )
        held[name].update(boxes)


def _check_piece(buffer: LocalBuffer, piece: Piece, rank: str, tensors: Mapping[str, GlobalTensor]) -> Box:
    """The part of the buffer that a piece takes."""
    where = f"{str(piece.tensor)[:80]!r} on rank {rank!r}"
    tensor = tensors.get(piece.tensor)
    if tensor is None:
        raise LayoutInvalid(f"{where}: not a tensor of the model")
    if tensor.dtype != buffer.dtype:
        raise LayoutInvalid(f"{where}: found the dtype {buffer.dtype}, expected {tensor.dtype}")
    box, at = piece.box, piece.at
    if len(box) != len(tensor.shape) or not contains(whole(tensor.shape), box) or any(a >= b for a, b in box):
        raise LayoutInvalid(f"{where}: found the box {box}, expected one inside the shape {tensor.shape}, not empty")
    if volume(whole(tensor.shape)) == 0:
        raise LayoutInvalid(f"{where}: found a box of a tensor without elements, expected none")
    leading = len(buffer.shape) - len(box)
    if leading < 0 or len(at) != len(buffer.shape):
        raise LayoutInvalid(f"{where}: found the position {at} in the buffer {buffer.name!r} of shape {buffer.shape}")
    size = (1,) * leading + extent(box)
    place = tuple((start, start + length) for start, length in zip(at, size, strict=True))
    if not contains(whole(buffer.shape), place):
        raise LayoutInvalid(f"{where}: {box} at {at} sticks out of the buffer {buffer.name!r} of shape {buffer.shape}")
    return place


def _check_memory(name: str, dtype: str, shape: object, where: str) -> None:
    _check_name(name, f"a name in {where}")
    if dtype not in DTYPES:
        raise LayoutInvalid(
            f"{name!r} of {where}: found the dtype {str(dtype)[:40]!r}, expected one of {', '.join(DTYPES)}"
        )
    if not isinstance(shape, tuple) or len(shape) > _MAX_DIMENSIONS or any(type(n) is not int or n < 0 for n in shape):
        raise LayoutInvalid(
            f"{name!r} of {where}: found the shape {shape}, expected up to {_MAX_DIMENSIONS} sizes from 0"
        )
    if math.prod(shape) > _MAX_ELEMENTS:
        raise LayoutInvalid(f"{name!r} of {where}: found the shape {shape}, expected at most {_MAX_ELEMENTS} elements")


def _check_name(name: object, what: str) -> None:
    if not isinstance(name, str) or not 0 < len(name) <= _MAX_NAME or not name.isprintable():
        raise LayoutInvalid(f"{what}: found {str(name)[:40]!r}, expected 1 to {_MAX_NAME} printable characters")
