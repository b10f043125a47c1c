"""A layout as JSON and back. What comes in is untrusted until `Layout` has accepted it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tailrace.paramserver.layout.boxes import Box
from tailrace.paramserver.layout.errors import LayoutInvalid
from tailrace.paramserver.layout.shards import Buffer, GlobalTensor, Piece, Shard

_MAX_TENSORS = 1_000_000
_MAX_PIECES = 4_000_000
_MAX_RANKS = 100_000
_MAX_INTEGER = 2**62


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


def parts(data: object) -> tuple[tuple[GlobalTensor, ...], dict[str, Shard]]:
    """The tensors and shards of the layout in a JSON object.

    Raises:
        LayoutInvalid: a field is missing or of the wrong type, or a limit is passed.
    """
    if not isinstance(data, dict) or data.keys() != {"tensors", "shards", "ranks"}:
        found = sorted(map(str, data))[:10] if isinstance(data, dict) else type(data).__name__
        raise LayoutInvalid(f"found a layout with {found}, expected an object with tensors, shards and ranks")
    tensors = tuple(
        GlobalTensor(_text(name), _text(dtype), _sizes(shape, "a shape"))
        for name, dtype, shape in (
            _row(item, 3, "a tensor") for item in _rows(data["tensors"], _MAX_TENSORS, "tensors")
        )
    )
    budget = _MAX_PIECES
    shards = []
    for item in _rows(data["shards"], _MAX_RANKS, "shards"):
        buffers = []
        for row in _rows(item, _MAX_PIECES, "buffers"):
            name, dtype, shape, rows = _row(row, 4, "a buffer")
            pieces = tuple(_piece(piece, tensors) for piece in _rows(rows, budget, "pieces"))
            budget -= len(pieces) + 1
            if budget < 0:
                raise LayoutInvalid(f"found more than {_MAX_PIECES} buffers and pieces")
            buffers.append(Buffer(_text(name), _text(dtype), _sizes(shape, "a buffer's shape"), pieces))
        shards.append(Shard(tuple(buffers)))
    ranks = data["ranks"]
    if not isinstance(ranks, dict) or len(ranks) > _MAX_RANKS:
        raise LayoutInvalid(f"ranks: expected an object of at most {_MAX_RANKS} ranks")
    return tensors, {_text(rank): shards[_integer(at, len(shards) - 1)] for rank, at in ranks.items()}


def _piece(item: object, tensors: tuple[GlobalTensor, ...]) -> Piece:
    number, rows, at = _row(item, 3, "a piece")
    tensor = tensors[_integer(number, len(tensors) - 1)]
    box: Box = tuple(
        (_integer(start), _integer(stop))
        for start, stop in (_row(edges, 2, "a box") for edges in _rows(rows, 16, "a box's dimensions"))
    )
    return Piece(tensor.name, box, _sizes(at, "a position"))


def _rows(value: object, limit: int, what: str) -> list[Any]:
    if not isinstance(value, list) or len(value) > limit:
        raise LayoutInvalid(f"{what}: expected a list of at most {limit}, found {str(value)[:40]}")
    return value


def _row(value: object, length: int, what: str) -> list[Any]:
    if not isinstance(value, list) or len(value) != length:
        raise LayoutInvalid(f"{what}: expected a list of {length}, found {str(value)[:40]}")
    return value


def _sizes(value: object, what: str) -> tuple[int, ...]:
    return tuple(_integer(size) for size in _rows(value, 16, what))


def _integer(value: object, high: int = _MAX_INTEGER) -> int:
    if type(value) is not int or not 0 <= value <= high:  # a bool is no integer here
        raise LayoutInvalid(f"found {str(value)[:40]!r}, expected an integer from 0 to {high}")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise LayoutInvalid(f"found {str(value)[:40]!r}, expected a string")
    return value
