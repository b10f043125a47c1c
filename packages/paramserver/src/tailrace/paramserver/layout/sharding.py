"""One description of how a model is spread over workers, whatever framework spread it (StaleFlow, Appendix A.1).

    Layout ── tensors: what the model consists of, in Hugging Face names
       └───── shards: what each rank holds ── buffers: its local parameters ── pieces: box of a tensor -> place in the buffer

A tensor that is cut has pieces on several ranks, a replicated one has the same box on several ranks, and a fused
parameter (`qkv_proj`, `gate_up_proj`) is a buffer with pieces of several tensors. Elements of a buffer in no piece are padding.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Protocol

from tailrace.paramserver.errors import LayoutInvalid
from tailrace.paramserver.layout.boxes import Box, Grid, contains, extent, find_overlap, volume, whole
from tailrace.paramserver.manifest import DTYPES, byte_size


class GlobalTensor(NamedTuple):
    """A tensor of the model before it is cut.

    Args:
        name: Hugging Face parameter name.
        dtype: a key of `tailrace.paramserver.manifest.DTYPES`.
        shape: dimensions.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Its size."""
        return byte_size(self.dtype, self.shape)


class Piece(NamedTuple):
    """A box of a tensor in a buffer.

    Args:
        tensor: its name.
        box: the elements, not empty.
        at: position of the box's first element in the buffer. The box lies in the buffer's last dimensions; where the
            buffer has more dimensions than the tensor, as with experts stacked in one parameter, `at` picks the index in them.
    """

    tensor: str
    box: Box
    at: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LocalBuffer:
    """A local parameter of a rank: dense, row-major memory.

    Args:
        name: the rank's name for it.
        dtype: the dtype of every piece.
        shape: local dimensions.
        pieces: its pieces. Elements in no piece are padding, which is never read or written.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    pieces: tuple[Piece, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "pieces", tuple(sorted(self.pieces, key=lambda piece: piece.at)))


@dataclass(frozen=True)
class Shard:
    """What one rank holds. Ranks that hold the same share one `Shard`.

    Args:
        buffers: kept in order of name, so that equal shards are equal whatever order they were made in.
    """

    buffers: tuple[LocalBuffer, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "buffers", tuple(sorted(self.buffers, key=lambda buffer: buffer.name)))

    @classmethod
    def of_boxes(cls, tensors: Iterable[GlobalTensor], boxes: Mapping[str, Sequence[Box]]) -> Shard:
        """A shard with a buffer of its own for every box: `name`, or `name#0`, `name#1` where a tensor has several."""
        buffers = []
        for tensor in tensors:
            held = [tuple((int(start), int(stop)) for start, stop in box) for box in boxes.get(tensor.name, ())]
            for index, box in enumerate(held):
                name = tensor.name if len(held) == 1 else f"{tensor.name}#{index}"
                piece = Piece(tensor.name, box, (0,) * len(box))
                buffers.append(LocalBuffer(name, tensor.dtype, extent(box), (piece,)))
        return cls(tuple(buffers))

    @cached_property
    def pieces(self) -> Mapping[str, tuple[tuple[LocalBuffer, Piece], ...]]:
        """The pieces of every tensor, and the buffers that they lie in."""
        found: dict[str, list[tuple[LocalBuffer, Piece]]] = {}
        for buffer in self.buffers:
            for piece in buffer.pieces:
                found.setdefault(piece.tensor, []).append((buffer, piece))
        return {name: tuple(held) for name, held in found.items()}


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


def to_wire(tensors: Sequence[GlobalTensor], groups: Sequence[tuple[Shard, tuple[str, ...]]]) -> dict[str, Any]:
    """A layout as a JSON object: `tensors`, each different shard once, and the index of each rank's shard."""
    index = {tensor.name: position for position, tensor in enumerate(tensors)}
    return {
        "tensors": [[tensor.name, tensor.dtype, list(tensor.shape)] for tensor in tensors],
        "shards": [
            [
                [
                    buffer.name,
                    buffer.dtype,
                    list(buffer.shape),
                    [[index[p.tensor], [list(edges) for edges in p.box], list(p.at)] for p in buffer.pieces],
                ]
                for buffer in shard.buffers
            ]
            for shard, _ in groups
        ],
        "ranks": {rank: number for number, (_, ranks) in enumerate(groups) for rank in ranks},
    }


@dataclass(frozen=True)
class Layout:
    """A model, and which rank holds which part of it.

    Checked when it is made: every element of every tensor is held by a rank, no rank holds one twice, and dtypes, shapes
    and positions agree. The order of `tensors` and `shards` carries no meaning: two layouts are equal, and have the same
    `digest`, when their content is.

    Args:
        tensors: the model. A tensor that is tied to another one is left out: it is the other one.
        shards: the shards of each rank, by the rank's name. A name stands for the same process in every layout.

    Raises:
        LayoutInvalid: names the tensor or buffer and the rank.
    """

    tensors: tuple[GlobalTensor, ...]
    shards: Mapping[str, Shard]

    def __post_init__(self) -> None:
        object.__setattr__(self, "tensors", tuple(sorted(self.tensors, key=lambda tensor: tensor.name)))
        known: dict[Shard, Shard] = {}
        seen: dict[int, Shard] = {}
        shards = {}
        for rank in sorted(self.shards):
            shard = self.shards[rank]
            # Hashing a large shard takes a while; replicas mostly come as one object.
            if id(shard) not in seen:
                seen[id(shard)] = known.setdefault(shard, shard)
            shards[rank] = seen[id(shard)]
        object.__setattr__(self, "shards", shards)
        check(self)

    @classmethod
    def of_boxes(cls, tensors: Sequence[GlobalTensor], boxes: Mapping[str, Mapping[str, Sequence[Box]]]) -> Layout:
        """A layout from the boxes of each tensor on each rank (`boxes[rank][tensor]`), each in a buffer of its own.

        Raises:
            LayoutInvalid: see the class.
        """
        return cls(tuple(tensors), {rank: Shard.of_boxes(tensors, held) for rank, held in boxes.items()})

    @classmethod
    def replicated(cls, tensors: Sequence[GlobalTensor], ranks: Iterable[str]) -> Layout:
        """The whole model on every rank: StaleFlow's parameter server workers, or replicas on one device each.

        Raises:
            LayoutInvalid: see the class.
        """
        held = [tensor for tensor in tensors if 0 not in tensor.shape]
        shard = Shard.of_boxes(held, {tensor.name: [whole(tensor.shape)] for tensor in held})
        return cls(tuple(tensors), dict.fromkeys(ranks, shard))

    def in_dtypes(self, choose: Callable[[GlobalTensor], str]) -> Layout:
        """The same model cut in the same way, with other dtypes.

        Args:
            choose: the dtype of each tensor. Tensors that share a buffer stay alike.
        """
        dtypes = {tensor.name: choose(tensor) for tensor in self.tensors}
        made = {
            id(shard): Shard(
                tuple(
                    dataclasses.replace(
                        buffer, dtype=dtypes[buffer.pieces[0].tensor] if buffer.pieces else buffer.dtype
                    )
                    for buffer in shard.buffers
                )
            )
            for shard, _ in self.groups
        }
        tensors = tuple(tensor._replace(dtype=dtypes[tensor.name]) for tensor in self.tensors)
        return Layout(tensors, {rank: made[id(shard)] for rank, shard in self.shards.items()})

    @cached_property
    def tensor(self) -> Mapping[str, GlobalTensor]:
        """The tensors by name."""
        return {tensor.name: tensor for tensor in self.tensors}

    @cached_property
    def groups(self) -> tuple[tuple[Shard, tuple[str, ...]], ...]:
        """Every shard that differs from the others, and the ranks that hold it, in order of their names."""
        found: dict[int, tuple[Shard, list[str]]] = {}
        for rank, shard in self.shards.items():
            found.setdefault(id(shard), (shard, []))[1].append(rank)
        return tuple((shard, tuple(ranks)) for shard, ranks in found.values())

    @cached_property
    def digest(self) -> str:
        """A hash of the content: the same in every process."""
        text = json.dumps(self.to_wire(), separators=(",", ":"), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def to_wire(self) -> dict[str, Any]:
        """The layout as a JSON object."""
        return to_wire(self.tensors, self.groups)


__all__ = ["LocalBuffer", "GlobalTensor", "Layout", "Piece", "Shard"]
