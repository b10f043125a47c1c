"""One version over one connection, chunk by chunk: the same exchange from publisher to relay and from relay to relay.

    sender -> relay   {"op": "offer", "manifest": {...}}
    relay -> sender   {"have": true}, or {"go": true} once a slot is free, or an error
    sender -> relay   every chunk, as soon as the sender has it
    relay -> sender   {"complete": true} once it is visible, or an error

The last message also tells the sender that the kernel refers to its memory no longer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from tailrace.paramserver.errors import ChunkDamaged, ProtocolError, RelayTimeout, VersionSuperseded
from tailrace.paramserver.machine.protocol import Segment
from tailrace.paramserver.manifest import Manifest, checksum
from tailrace.paramserver.relays.slots import Slot, SlotTable
from tailrace.paramserver.wire.channel import Channel

_POLL_S = 0.25


class Memory(Protocol):
    """Bytes that are a buffer here and, if `fd` is not negative, a file to the kernel."""

    @property
    def fd(self) -> int:
        """File descriptor of the same bytes."""
        ...

    @property
    def view(self) -> memoryview:
        """The bytes."""
        ...


def send_version(
    channel: Channel,
    manifest: Manifest,
    memory: Memory,
    chunk_checksum: Callable[[int], int],
    *,
    go_timeout_s: float,
    give_up: Callable[[], bool] = lambda: False,
) -> bool:
    """Offer a version and send it if the relay lacks it.

    Args:
        channel: an authenticated connection to the relay.
        manifest: the version's layout.
        memory: the version's bytes; they must not change before this returns.
        chunk_checksum: the checksum of a chunk; it may block until the chunk is there.
        go_timeout_s: how long the relay may take to free a slot.
        give_up: asked while waiting for the slot; True abandons the offer.

    Returns:
        Whether anything was sent: False if the relay held the version already.

    Raises:
        VersionSuperseded: `give_up` said so. The connection is of no use any more.
        ParamServerError: what the relay answered, or what happened to the connection.
    """
    channel.send({"op": "offer", "manifest": manifest.to_wire()})
    waited_s = 0.0
    while not channel.readable(_POLL_S):
        waited_s += _POLL_S
        if give_up():
            raise VersionSuperseded(f"version {manifest.version} gave way while {channel.peer} had no free slot")
        if waited_s >= go_timeout_s:
            raise RelayTimeout(f"{channel.peer} did not free a slot for version {manifest.version} in {go_timeout_s} s")
    if channel.answer(channel.stall_s).get("have"):
        return False
    for index in range(manifest.chunk_count):
        offset, nbytes = manifest.chunk(index)
        channel.send_chunk(index, chunk_checksum(index), memory.fd, memory.view, offset, nbytes)
    channel.answer(channel.stall_s)
    return True


def receive_chunks(
    channel: Channel, manifest: Manifest, view: memoryview, arrived: Callable[[int], None], damaged: Callable[[], None]
) -> None:
    """Fill memory with a version's chunks.

    Args:
        view: at least `manifest.total_bytes` of writable memory.
        arrived: called with the checksum of each chunk that matched, in order; not any more after a damaged one.
        damaged: called once, at the first damaged chunk. The rest is still taken off the wire, so that the sender
            lives to read the error.

    Raises:
        ProtocolError: the chunks are not those of the manifest.
        ChunkDamaged: a chunk did not match its checksum.
    """
    bad: str | None = None
    for index in range(manifest.chunk_count):
        offset, nbytes = manifest.chunk(index)
        found_index, found_nbytes, expected = channel.receive_chunk_header()
        if (found_index, found_nbytes) != (index, nbytes):
            raise ProtocolError(
                f"{channel.peer} sent chunk {found_index} of {found_nbytes} bytes, expected {index} of {nbytes}"
            )
        part = view[offset : offset + nbytes]
        channel.receive_into(part)
        found = checksum(part)
        if bad is not None:
            continue
        if found == expected:
            arrived(found)
        else:
            bad = (
                f"chunk {index} of version {manifest.version} from {channel.peer} has the checksum {found:016x}, "
                f"expected {expected:016x}; it was damaged on the way and is not used"
            )
            damaged()
    if bad is not None:
        raise ChunkDamaged(bad)


def receive_version(channel: Channel, table: SlotTable, manifest: Manifest, slot_timeout_s: float) -> None:
    """The relay's side of `send_version`, after the offer.

    Raises:
        ParamServerError: the version is not visible; what of it arrived is forgotten.
    """
    slot: Slot | None = table.reserve(manifest, slot_timeout_s)
    if slot is None or slot.publication is None:
        channel.send({"have": True})
        return
    publication, segment = slot.publication, slot.memory
    try:
        channel.send({"go": True})
        receive_chunks(
            channel,
            manifest,
            segment.view,
            lambda value: table.arrived(publication, value),
            lambda: table.damaged(publication),
        )
    except BaseException:
        table.fail(slot)
        raise
    table.complete(slot)
    channel.send({"complete": True})


def stream_version(channel: Channel, manifest: Manifest, segment: Segment, checksums: list[int]) -> None:
    """Send a complete version to a reader on another host, and wait until it has everything."""
    for index in range(manifest.chunk_count):
        offset, nbytes = manifest.chunk(index)
        channel.send_chunk(index, checksums[index], segment.fd, segment.view, offset, nbytes)
    channel.answer(channel.stall_s)
