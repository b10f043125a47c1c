"""Receiving the chunks of one version over one connection (see `sending` for the exchange)."""

from __future__ import annotations

import threading
from queue import SimpleQueue
from typing import Protocol

import xxhash

from tailrace.paramserver.codec.registry import Codec
from tailrace.paramserver.errors import ChunkDamaged, ParamServerError, ProtocolError
from tailrace.paramserver.manifest import Manifest, checksum
from tailrace.paramserver.transport.protocol import HashingSource, RemoteMemory
from tailrace.paramserver.wire.agreement import to_ranges
from tailrace.paramserver.wire.channel import Channel, ChunkHeader, ChunkKind, TrafficCounts
from tailrace.paramserver.wire.sending import ROUNDS

#: Smaller chunks are hashed where they are received: waking a thread takes longer than hashing them.
WORTH_BYTES = 8 * 2**20
#: Handed over at a time: more often costs more switches between threads than waiting for the last piece does.
PIECE_BYTES = 4 * 2**20


class BackgroundHash:
    """A thread that hashes, started by the first chunk. Close it.

        consumes     pieces of a chunk, as they arrive
        waits for    the next piece
        unblocked by a piece, `close`

    Receiving is a copy out of the kernel, which takes a whole core; hashing after it on the same core makes a pull a quarter
    slower. The pieces are hashed while they are in the cache that the cores share. The thread computes and nothing else: it
    keeps no time and touches no connection, so it needs nothing of the machine.
    """

    def __init__(self) -> None:
        self._work: SimpleQueue[BackgroundHasher | tuple[BackgroundHasher, memoryview] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def chunk(self, part: memoryview) -> BackgroundHasher:
        """The hasher of a chunk that arrives in this memory, from its first byte to its last."""
        if self._thread is None:
            self._thread = threading.Thread(target=_run, args=(self._work,), name="tailrace hash", daemon=True)
            self._thread.start()
        return BackgroundHasher(self._work, part)

    def close(self) -> None:
        """End the thread once its work is done; then it no longer reads the memory. A second call does nothing."""
        if self._thread is not None:
            self._work.put(None)
            self._thread.join()
            self._thread = None


class BackgroundHasher:
    """The checksum of one chunk."""

    def __init__(
        self, work: SimpleQueue[BackgroundHasher | tuple[BackgroundHasher, memoryview] | None], part: memoryview
    ) -> None:
        self._work, self._part = work, part
        self._arrived = self._given = 0
        self._hash = xxhash.xxh3_64()
        self._done: SimpleQueue[int] = SimpleQueue()

    def arrived(self, nbytes: int) -> None:
        """Note that more bytes are in place."""
        self._arrived += nbytes
        if self._arrived - self._given >= PIECE_BYTES:
            self._give()

    def value(self) -> int:
        """The checksum of the arrived bytes."""
        if self._arrived > self._given:
            self._give()
        self._work.put(self)
        return self._done.get()

    def update(self, piece: memoryview) -> None:
        """Hash a piece (on the hashing thread)."""
        self._hash.update(piece)

    def finish(self) -> None:
        """Finish after the last piece (on the hashing thread)."""
        self._done.put(int(self._hash.intdigest()))

    def _give(self) -> None:
        self._work.put((self, self._part[self._given : self._arrived]))
        self._given = self._arrived


def _run(work: SimpleQueue[BackgroundHasher | tuple[BackgroundHasher, memoryview] | None]) -> None:
    while (item := work.get()) is not None:
        if isinstance(item, BackgroundHasher):
            item.finish()
        else:
            item[0].update(item[1])
        del item  # its view would keep the memory from being resized


class Sink(Protocol):
    """The destination of a version's chunks."""

    @property
    def view(self) -> memoryview:
        """Writable memory of at least the version's size."""
        ...

    def progress(self) -> None:
        """Something came."""
        ...

    def arrived(self, index: int, checksum: int) -> None:
        """Note that a chunk is in place and matched its checksum."""
        ...


class InPlace:
    """A `HashingSource` of chunks that lie where they belong."""

    def read_into(self, view: memoryview, offset: int, timeout_s: float) -> None:
        """See `RemoteMemory`."""

    def read_hashed(self, view: memoryview, offset: int, timeout_s: float) -> int:  # noqa: ARG002
        return checksum(view)

    def close(self) -> None:
        """See `RemoteMemory`."""


class Intake:
    """How chunks come in one transfer, as it was agreed.

    Args:
        source: the sender's exported memory, or None.
        codec: the codec that the sender encodes with, or None.
        base: the bytes of the version that it encodes against.
    """

    def __init__(
        self, source: RemoteMemory | None = None, codec: Codec | None = None, base: memoryview | None = None
    ) -> None:
        self._source, self._codec, self._base = source, codec, base
        self._payload, self._aside = bytearray(), BackgroundHash()

    def take(self, channel: Channel, header: ChunkHeader, offset: int, sink: Sink) -> int | None:
        """Receive a chunk into its place.

        Returns:
            The checksum of what is there now, or None if the chunk could not be brought this way.

        Raises:
            ProtocolError: it comes in a way that was not agreed.
            RelayUnreachable, RelayTimeout: the connection broke.
        """
        part = sink.view[offset : offset + header.nbytes]
        if header.kind is ChunkKind.RAW:
            if header.nbytes >= WORTH_BYTES:
                return self._receive_aside(channel, part, sink)
            hasher = xxhash.xxh3_64()

            def seen(piece: memoryview) -> None:
                hasher.update(piece)
                sink.progress()

            channel.receive_into(part, seen)
            return int(hasher.intdigest())
        if header.kind is ChunkKind.ENCODED:
            if self._codec is None or self._base is None:
                raise ProtocolError(f"{channel.peer} sent chunk {header.index} encoded, expected it raw")
            return self._decode(channel, header, offset, part, self._codec, self._base)
        if self._source is None:
            return None
        try:
            if isinstance(self._source, HashingSource):
                found = self._source.read_hashed(part, offset, channel.stall_s)
            else:
                self._source.read_into(part, offset, channel.stall_s)
                found = checksum(part)
        except ParamServerError:  # the rest comes on the connection, which works
            self.close()
            return None
        sink.progress()
        return found

    def close(self) -> None:
        """Give the sender's memory back."""
        self._aside.close()
        if self._source is not None:
            self._source.close()
            self._source = None

    def _receive_aside(self, channel: Channel, part: memoryview, sink: Sink) -> int:
        hasher = self._aside.chunk(part)

        def seen(piece: memoryview) -> None:
            hasher.arrived(piece.nbytes)
            sink.progress()

        channel.receive_into(part, seen)
        return hasher.value()

    def _decode(
        self, channel: Channel, header: ChunkHeader, offset: int, part: memoryview, codec: Codec, base: memoryview
    ) -> int | None:
        if len(self._payload) < header.payload_bytes:
            self._payload = bytearray(header.payload_bytes)
        payload = memoryview(self._payload)[: header.payload_bytes]
        channel.receive_into(payload)
        try:
            codec.decode(payload, base[offset : offset + header.nbytes], part)
        except ParamServerError:
            return None
        return checksum(part)


def receive_chunks(
    channel: Channel, manifest: Manifest, missing: list[int], sink: Sink, intake: Intake, counts: TrafficCounts
) -> bool:
    """Fill memory with the chunks of a version that are missing. The caller then says that it is complete.

    A chunk that does not match its checksum is asked for again, raw, and it alone.

    Returns:
        Whether all of them arrived: False if the sender stopped, which has been answered.

    Raises:
        ProtocolError: the chunks are not those that are missing.
        ChunkDamaged: a chunk came damaged too often. The rest of them has arrived, and the two ends agree on that.
    """
    for attempt in range(1, ROUNDS + 1):
        wanted, damaged, why = set(missing), list[int](), ""
        while wanted:
            header = channel.receive_chunk_header()
            if header.kind is ChunkKind.STOP:
                channel.send({"partial": True})
                return False
            if header.index not in wanted:
                raise ProtocolError(
                    f"{channel.peer} sent chunk {header.index} of version {manifest.version}, "
                    f"expected one of {str(to_ranges(sorted(wanted))[:3])[1:-1]}"
                )
            offset, nbytes = manifest.chunk(header.index)
            if header.nbytes != nbytes:
                raise ProtocolError(
                    f"{channel.peer} sent chunk {header.index} of {header.nbytes} bytes, "
                    f"expected {header.index} of {nbytes}"
                )
            found = intake.take(channel, header, offset, sink)
            counts.payload_received += header.payload_bytes
            wanted.discard(header.index)
            if found == header.checksum:
                sink.arrived(header.index, found)
                counts.chunks_received += 1
                counts.bytes_received += nbytes
                continue
            damaged.append(header.index)
            if header.kind is not ChunkKind.RAW:
                counts.fallbacks += 1
                continue
            counts.chunks_damaged += 1
            why = (
                f"chunk {header.index} of version {manifest.version} from {channel.peer} has the checksum {found:016x}, "
                f"expected {header.checksum:016x}; it was damaged on the way and is not used"
            )
        if not damaged:
            return True
        missing = sorted(damaged)
        if attempt < ROUNDS:
            channel.send({"again": to_ranges(missing)})
    raise ChunkDamaged(why)
