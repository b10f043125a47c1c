"""Moving the bytes of a plan: pack at the sender, unpack at the receiver, copy within a rank.

Buffers are those of the rank's `Shard`, by name: anything with a C-contiguous buffer (bytearray, shared memory, numpy
array) or contiguous torch tensors on any device. Elements in no piece of the target are left as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tailrace.paramserver.layout.errors import LayoutMismatch
from tailrace.paramserver.layout.message import Message
from tailrace.paramserver.layout.strided import copy_box, dense_strides, flat


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
