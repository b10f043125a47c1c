"""What one rank sends to another: the slices of a plan, and where their bytes lie at both ends and in between.

`pack`, `unpack` and `copy` move the bytes. Their buffers are those of the rank's `Shard`, by name: anything with a
C-contiguous buffer (bytearray, shared memory, numpy array) or contiguous torch tensors on any device. Elements in no piece
of the target are left as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from tailrace.paramserver.errors import LayoutMismatch
from tailrace.paramserver.layout.boxes import contains, extent
from tailrace.paramserver.layout.reshard_plan import ReshardPlan, Slice
from tailrace.paramserver.layout.sharding import Layout
from tailrace.paramserver.layout.strided import copy_box, dense_strides, flat
from tailrace.paramserver.manifest import DTYPES, byte_size


class SlicePlace(NamedTuple):
    """Where a slice lies in a buffer: bytes from its start, and bytes per step in each of the slice's dimensions."""

    buffer: str
    offset: int
    strides: tuple[int, ...]


class SliceCopy(NamedTuple):
    """A slice at both ends and in the message.

    Args:
        slice: the number of the slice.
        extent: its size in each dimension.
        itemsize: bytes of an element.
        at: its first byte in the message, a multiple of `itemsize`. There it is row-major and without gaps.
        source: its place at the sender.
        target: its place at the receiver.
    """

    slice: Slice
    extent: tuple[int, ...]
    itemsize: int
    at: int
    source: SlicePlace
    target: SlicePlace


@dataclass(frozen=True, slots=True)
class Message:
    """All that one rank sends to another for a version.

    Args:
        sender, receiver: ranks; the same for what a rank copies.
        moves: the slices, those with the largest elements first, so that each is aligned without padding.
        nbytes: size of the packed message: the sum of the slices.
        source_bytes, target_bytes: size of every buffer that is read, and that is written.
    """

    sender: str
    receiver: str
    moves: tuple[SliceCopy, ...]
    nbytes: int
    source_bytes: Mapping[str, int]
    target_bytes: Mapping[str, int]


def message(plan: ReshardPlan, sender: str, receiver: str) -> Message:
    """What `sender` sends to `receiver` under a plan. Both ends work it out for themselves, and agree.

    Raises:
        LayoutMismatch: the plan has nothing for this pair.
    """
    numbers = plan.pairs.get((sender, receiver))
    if numbers is None:
        raise LayoutMismatch(f"the plan moves nothing from {sender!r} to {receiver!r}")
    dtypes = {name: DTYPES[tensor.dtype] for name, tensor in plan.source.tensor.items()}
    slices = sorted((plan.slices[number] for number in numbers), key=lambda item: (-dtypes[item.tensor], item))
    moves, at = [], 0
    source_bytes: dict[str, int] = {}
    target_bytes: dict[str, int] = {}
    for piece in slices:
        size = dtypes[piece.tensor]
        source = _place(plan.source, sender, piece, size, source_bytes)
        target = _place(plan.target, receiver, piece, size, target_bytes)
        moves.append(SliceCopy(piece, extent(piece.box), size, at, source, target))
        at += piece.nbytes
    return Message(sender, receiver, tuple(moves), at, source_bytes, target_bytes)


def _place(layout: Layout, rank: str, piece: Slice, itemsize: int, sizes: dict[str, int]) -> SlicePlace:
    for buffer, held in layout.shards[rank].pieces[piece.tensor]:
        if contains(held.box, piece.box):
            sizes[buffer.name] = byte_size(buffer.dtype, buffer.shape)
            strides = dense_strides(buffer.shape, itemsize)
            leading = len(buffer.shape) - len(piece.box)
            start = list(held.at)
            for dimension, ((begin, _), (held_begin, _)) in enumerate(zip(piece.box, held.box, strict=True)):
                start[leading + dimension] += begin - held_begin
            offset = sum(index * stride for index, stride in zip(start, strides, strict=True))
            return SlicePlace(buffer.name, offset, strides[leading:])
    raise LayoutMismatch(f"{piece.tensor!r}: rank {rank!r} does not hold {piece.box} in one piece")


def pack(message: Message, buffers: Mapping[str, Any], out: Any) -> None:
    """Write a message into `out`, `message.nbytes` long, from the sender's buffers.

    Raises:
        LayoutMismatch: a buffer is missing, or its size is not the layout's; nothing was written.
    """
    source = _flat(message.source_bytes, buffers, message.sender, writable=False)
    packed = flat(out, "message", message.nbytes, writable=True)
    for move in message.moves:
        dense = dense_strides(move.extent, move.itemsize)
        place = move.source
        copy_box(source[place.buffer], place.offset, place.strides, packed, move.at, dense, move.extent, move.itemsize)


def unpack(message: Message, data: Any, buffers: Mapping[str, Any]) -> None:
    """Write what `pack` made into the receiver's buffers.

    Raises:
        LayoutMismatch: the data or a buffer is missing, or its size is not the layout's; nothing was written.
    """
    packed = flat(data, "message", message.nbytes, writable=False)
    target = _flat(message.target_bytes, buffers, message.receiver, writable=True)
    for move in message.moves:
        dense = dense_strides(move.extent, move.itemsize)
        place = move.target
        copy_box(packed, move.at, dense, target[place.buffer], place.offset, place.strides, move.extent, move.itemsize)


def copy(message: Message, sources: Mapping[str, Any], targets: Mapping[str, Any]) -> None:
    """Move a message in one step between memories that are both at hand: within a rank, or through shared memory.

    Raises:
        LayoutMismatch: a buffer is missing, or its size is not the layout's; nothing was written.
    """
    source = _flat(message.source_bytes, sources, message.sender, writable=False)
    target = _flat(message.target_bytes, targets, message.receiver, writable=True)
    for move in message.moves:
        (a, a_at, a_strides), (b, b_at, b_strides) = move.source, move.target
        copy_box(source[a], a_at, a_strides, target[b], b_at, b_strides, move.extent, move.itemsize)


def _flat(sizes: Mapping[str, int], buffers: Mapping[str, Any], rank: str, *, writable: bool) -> dict[str, Any]:
    missing = sizes.keys() - buffers.keys()
    if missing:
        raise LayoutMismatch(f"rank {rank!r}: found no buffer {min(missing)!r}, expected those of its layout")
    return {name: flat(buffers[name], name, nbytes, writable=writable) for name, nbytes in sizes.items()}
