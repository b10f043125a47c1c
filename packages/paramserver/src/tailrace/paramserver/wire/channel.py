"""A connection: length-prefixed JSON messages with raw payload between them, every wait with a deadline.

    message := length (4 bytes, big-endian) + xxh3 checksum of the rest (8) + JSON object
    chunk   := index (4) + size (4) + xxh3 checksum of the full chunk (8) + payload size (4) + kind (1) + payload

    kind      payload
    RAW       the chunk
    ENCODED   the chunk as a codec made it, smaller than the chunk
    READY     nothing: the chunk can be read from the sender's exported memory
    STOP      nothing, and no chunk: the sender sends no more of this version for now

The checksum is combined with one of the rest of its header, so that a chunk whose index was damaged on the way does not
match either.

Nothing that arrives is evaluated or unpickled. Lengths are checked before memory is allocated for them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import numbers
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import xxhash

from tailrace.paramserver.errors import PeerClosed, ProtocolError, RelayTimeout, RelayUnreachable, from_wire
from tailrace.paramserver.machine.protocol import ByteStream


def plain_number(value: object) -> int | float:
    """A number of another library, such as numpy's, as Python and JSON have it.

    Raises:
        TypeError: it is none.
    """
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        return float(value)
    raise TypeError(f"found {value!r:.80} of type {type(value).__name__}, expected a number")


@dataclasses.dataclass
class TrafficCounts:
    """Totals since the start. Threads add to them without a lock, under the interpreter's own.

    Args:
        chunks_received: chunks that arrived and matched their checksum.
        bytes_received: the bytes of these chunks.
        payload_received: bytes that it took to bring them, of damaged ones too.
        chunks_damaged: chunks that arrived and did not match; they were asked for again.
        chunks_sent: chunks that were sent, each time.
        bytes_sent: the bytes of these chunks.
        payload_sent: bytes that it took on the connection: less with a codec, none with a one-sided transport.
        chunks_resent: the chunks of `chunks_sent` that this sender had sent to the same peer before.
        bytes_resent: the bytes of these chunks.
        chunks_encoded: the chunks of `chunks_sent` that a codec made smaller.
        fallbacks: chunks that a codec or a one-sided transport did not bring, and that came raw instead.
    """

    chunks_received: int = 0
    bytes_received: int = 0
    payload_received: int = 0
    chunks_damaged: int = 0
    chunks_sent: int = 0
    bytes_sent: int = 0
    payload_sent: int = 0
    chunks_resent: int = 0
    bytes_resent: int = 0
    chunks_encoded: int = 0
    fallbacks: int = 0

    def to_wire(self) -> dict[str, int]:
        """The totals as a JSON object."""
        return dataclasses.asdict(self)


_MESSAGE = struct.Struct("!IQ")
_CHUNK = struct.Struct("!IIQIB")
_REST = struct.Struct("!IIIB")
MAX_MESSAGE = 64 * 2**20


class ChunkKind(IntEnum):
    """How a chunk comes."""

    RAW = 0
    ENCODED = 1
    READY = 2
    STOP = 3


@dataclass(frozen=True, slots=True)
class ChunkHeader:
    """The header of a chunk. So far only its kind and sizes have been checked."""

    index: int
    nbytes: int
    checksum: int
    payload_bytes: int
    kind: ChunkKind


class Channel:
    """One end of a connection, used by one thread at a time.

    Args:
        stream: the stream that carries its bytes.
        stall_s: how long the peer may make no progress inside a message or a chunk.
        peer: how error messages call the other end.
    """

    def __init__(self, stream: ByteStream, stall_s: float, peer: str) -> None:
        self._stream, self.stall_s, self.peer = stream, stall_s, peer
        self._left: Callable[[], float] | None = None  # seconds, inside of `within`

    @contextlib.contextmanager
    def within(self, seconds: float, now: Callable[[], float]) -> Iterator[None]:
        """All that is sent and received inside of it has so many seconds together; after that each wait raises RelayTimeout.

        Args:
            seconds: from now on.
            now: the clock, in seconds.
        """
        until = now() + seconds
        self._left = lambda: until - now()
        try:
            yield
        finally:
            self._left = None

    @property
    def ends(self) -> tuple[str, str]:
        """The addresses of this end and of the other one, ``host:port`` in numbers; empty where there is none."""
        return self._stream.ends()

    def send(self, message: dict[str, Any]) -> None:
        """Send a message.

        Raises:
            RelayUnreachable: the connection broke.
            RelayTimeout: the peer took nothing for `stall_s`.
        """
        body = json.dumps(message, separators=(",", ":"), default=plain_number).encode()
        if len(body) > MAX_MESSAGE:
            raise ProtocolError(f"a message of {len(body)} bytes is over the limit of {MAX_MESSAGE}")
        self._send_all(_MESSAGE.pack(len(body), xxhash.xxh3_64_intdigest(body)) + body)

    def receive(self, timeout_s: float | None, *, limit: int = MAX_MESSAGE) -> dict[str, Any]:
        """The next message.

        Args:
            timeout_s: how long to wait for its first byte; None waits until the peer closes.
            limit: the longest message to accept, in bytes.

        Raises:
            PeerClosed: the connection ended before the message.
            RelayUnreachable: the connection broke.
            RelayTimeout: nothing came in time.
            ProtocolError: what came is not a message, or too long, or damaged.
        """
        header = bytearray(_MESSAGE.size)
        self._receive_all(memoryview(header), timeout_s, may_end=True)
        length, expected = _MESSAGE.unpack(header)
        if length > limit:
            raise ProtocolError(f"{self.peer} announced a message of {length} bytes, expected at most {limit}")
        body = bytearray(length)
        self._receive_all(memoryview(body), self.stall_s)
        # TCP's own 16 bits let a wrong byte through now and then: in a manifest it would be believed.
        if (found := xxhash.xxh3_64_intdigest(body)) != expected:
            raise ProtocolError(
                f"{self.peer} sent a message of {length} bytes with the checksum {found:016x}, expected {expected:016x}; "
                "it was damaged on the way"
            )
        try:
            message = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise ProtocolError(f"{self.peer} sent {length} bytes that are not JSON") from error
        if not isinstance(message, dict):
            raise ProtocolError(f"{self.peer} sent a JSON {type(message).__name__}, expected an object")
        return message

    def request(self, message: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        """Send a message and return the answer, or raise the error that the answer carries."""
        self.send(message)
        return self.answer(timeout_s)

    def answer(self, timeout_s: float, *, limit: int = MAX_MESSAGE) -> dict[str, Any]:
        """The next message, or the error that it carries, raised."""
        answer = self.receive(timeout_s, limit=limit)
        if "error" in answer:
            raise from_wire(answer)
        return answer

    def readable(self, timeout_s: float) -> bool:
        """Whether data arrived, or the peer closed, within `timeout_s` seconds."""
        return self._stream.readable(timeout_s)

    def send_chunk(self, index: int, checksum: int, fd: int, view: memoryview, offset: int, nbytes: int) -> None:
        """Send a chunk from memory that is `view` here and the file `fd` to the kernel.

        The kernel may still refer to that memory when this returns, until the peer acknowledges what it has received.
        """
        self._send_all(_header(index, nbytes, checksum, nbytes, ChunkKind.RAW))
        sent = self._send_file(fd, offset, nbytes)
        if sent < nbytes:
            self._send_all(view[offset + sent : offset + nbytes])

    def send_encoded(self, index: int, checksum: int, nbytes: int, payload: bytes) -> None:
        """Send a chunk of `nbytes` as a codec made it."""
        self._send_all(_header(index, nbytes, checksum, len(payload), ChunkKind.ENCODED))
        self._send_all(payload)

    def send_ready(self, index: int, checksum: int, nbytes: int) -> None:
        """Say that a chunk can be read from the memory that was exported."""
        self._send_all(_header(index, nbytes, checksum, 0, ChunkKind.READY))

    def send_stop(self) -> None:
        """Say that no more chunks come for now."""
        self._send_all(_header(0, 0, 0, 0, ChunkKind.STOP))

    def receive_chunk_header(self) -> ChunkHeader:
        """Receive the next message.

        Raises:
            ProtocolError: no such kind of chunk, or a payload whose size does not go with it.
        """
        header = bytearray(_CHUNK.size)
        self._receive_all(memoryview(header), self.stall_s)
        index, nbytes, checksum, payload_bytes, kind = _CHUNK.unpack(header)
        if kind not in ChunkKind.__members__.values():
            raise ProtocolError(f"{self.peer} sent a chunk of kind {kind}, expected 0 to {max(ChunkKind)}")
        low, high = {
            ChunkKind.RAW: (nbytes, nbytes),
            ChunkKind.ENCODED: (0, nbytes - 1),
            ChunkKind.READY: (0, 0),
            ChunkKind.STOP: (0, 0),
        }[ChunkKind(kind)]
        if not low <= payload_bytes <= high:
            raise ProtocolError(
                f"{self.peer} announced {payload_bytes} bytes for chunk {index} of {nbytes} bytes, expected "
                f"{low if low == high else f'{low} to {high}'} ({ChunkKind(kind).name.lower()})"
            )
        return ChunkHeader(
            index, nbytes, checksum ^ _rest(index, nbytes, payload_bytes, kind), payload_bytes, ChunkKind(kind)
        )

    def receive_into(self, view: memoryview, seen: Callable[[memoryview], object] | None = None) -> None:
        """Fill a buffer with payload. `seen` gets each part of it as it arrives, still in the processor's cache."""
        self._receive_all(view, self.stall_s, seen=seen)

    def shutdown(self) -> None:
        """End the connection under a thread that waits on it."""
        self._stream.shutdown()

    def close(self) -> None:
        """Give the connection back."""
        self._stream.close()

    def _send_file(self, fd: int, offset: int, nbytes: int) -> int:
        sent = 0
        try:
            while sent < nbytes:
                count = self._stream.send_file(fd, offset + sent, nbytes - sent, self.stall_s)
                if count == 0:  # this stream cannot
                    break
                sent += count
        except TimeoutError as error:
            raise self._stalled("took") from error
        except OSError as error:
            raise self._broken(error) from error
        return sent

    def _send_all(self, data: bytes | memoryview) -> None:
        view = memoryview(data)
        try:
            while view.nbytes:  # the deadline is for progress, not for the whole
                view = view[self._stream.send(view, self._patience(self.stall_s)) :]
        except TimeoutError as error:
            raise self._stalled("took") from error
        except OSError as error:
            raise self._broken(error) from error

    def _receive_all(
        self,
        view: memoryview,
        timeout_s: float | None,
        *,
        may_end: bool = False,
        seen: Callable[[memoryview], object] | None = None,
    ) -> None:
        got = 0
        try:
            while got < view.nbytes:
                patience = self.stall_s if got else timeout_s
                count = self._stream.receive_into(view[got:], None if patience is None else self._patience(patience))
                if count == 0:
                    raise PeerClosed(f"{self.peer} closed the connection" + ("" if may_end and not got else " midway"))
                if seen is not None:
                    seen(view[got : got + count])
                got += count
        except TimeoutError as error:
            raise self._stalled("sent", None if got else timeout_s) from error
        except OSError as error:
            if isinstance(error, RelayUnreachable):
                raise
            raise self._broken(error) from error

    def _patience(self, seconds: float) -> float:
        if self._left is None:
            return seconds
        left = self._left()
        if left <= 0:
            raise TimeoutError
        return min(seconds, left)

    def _stalled(self, verb: str, after_s: float | None = None) -> RelayTimeout:
        if self._left is not None and self._left() <= 0:
            return RelayTimeout(f"{self.peer} did not say in time who it is; it is stuck, suspended or cut off")
        seconds = self.stall_s if after_s is None else after_s
        return RelayTimeout(f"{self.peer} {verb} nothing for {seconds:.3g} s; it is stuck, suspended or cut off")

    def _broken(self, error: OSError) -> RelayUnreachable:
        return RelayUnreachable(f"the connection to {self.peer} broke: {error.strerror or error}")


def _header(index: int, nbytes: int, checksum: int, payload_bytes: int, kind: ChunkKind) -> bytes:
    return _CHUNK.pack(index, nbytes, checksum ^ _rest(index, nbytes, payload_bytes, kind), payload_bytes, kind)


def _rest(index: int, nbytes: int, payload_bytes: int, kind: int) -> int:
    return int(xxhash.xxh3_64_intdigest(_REST.pack(index, nbytes, payload_bytes, kind)))


def parse_address(address: str) -> tuple[str, int]:
    """Host and port.

    Raises:
        ProtocolError: it is not of the form ``host:port``.
    """
    host, _, port = str(address).rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
        raise ProtocolError(f"found the address {address!r}, expected host:port, for example 127.0.0.1:4711")
    return host, int(port)


def format_address(host: str, port: int) -> str:
    """The text that `parse_address` reads."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
