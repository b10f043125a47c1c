"""A connection: length-prefixed JSON messages with raw payload between them, every wait with a deadline.

    message := length (4 bytes, big-endian) + JSON object
    chunk   := index (4) + size (4) + xxh3 checksum (8) + payload

Nothing that arrives is evaluated or unpickled. Lengths are checked before memory is allocated for them.
"""

from __future__ import annotations

import json
import struct
from typing import Any

from tailrace.paramserver.errors import PeerClosed, ProtocolError, RelayTimeout, RelayUnreachable, from_wire
from tailrace.paramserver.machine.protocol import Stream

_LENGTH = struct.Struct("!I")
_CHUNK = struct.Struct("!IIQ")
MAX_MESSAGE = 64 * 2**20


class Channel:
    """One end of a connection, used by one thread at a time.

    Args:
        stream: what carries its bytes.
        stall_s: how long the peer may make no progress inside a message or a chunk.
        peer: how error messages call the other end.
    """

    def __init__(self, stream: Stream, stall_s: float, peer: str) -> None:
        self._stream, self.stall_s, self.peer = stream, stall_s, peer

    def send(self, message: dict[str, Any]) -> None:
        """Send a message.

        Raises:
            RelayUnreachable: the connection broke.
            RelayTimeout: the peer took nothing for `stall_s`.
        """
        body = json.dumps(message, separators=(",", ":")).encode()
        if len(body) > MAX_MESSAGE:
            raise ProtocolError(f"a message of {len(body)} bytes is over the limit of {MAX_MESSAGE}")
        self._send_all(_LENGTH.pack(len(body)) + body)

    def receive(self, timeout_s: float | None, *, limit: int = MAX_MESSAGE) -> dict[str, Any]:
        """The next message.

        Args:
            timeout_s: how long to wait for its first byte; None waits until the peer closes.
            limit: the longest message to accept, in bytes.

        Raises:
            PeerClosed: the connection ended before the message.
            RelayUnreachable: the connection broke.
            RelayTimeout: nothing came in time.
            ProtocolError: what came is not a message, or too long.
        """
        header = bytearray(_LENGTH.size)
        self._receive_all(memoryview(header), timeout_s, may_end=True)
        (length,) = _LENGTH.unpack(header)
        if length > limit:
            raise ProtocolError(f"{self.peer} announced a message of {length} bytes, expected at most {limit}")
        body = bytearray(length)
        self._receive_all(memoryview(body), self.stall_s)
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

    def answer(self, timeout_s: float) -> dict[str, Any]:
        """The next message, or the error that it carries, raised."""
        answer = self.receive(timeout_s)
        if "error" in answer:
            raise from_wire(answer)
        return answer

    def readable(self, timeout_s: float) -> bool:
        """Whether something arrived (or the peer closed) within so many seconds."""
        return self._stream.readable(timeout_s)

    def send_chunk(self, index: int, checksum: int, fd: int, view: memoryview, offset: int, nbytes: int) -> None:
        """Send a chunk from memory that is `view` here and the file `fd` to the kernel.

        The kernel may still refer to that memory when this returns, until the peer acknowledges what it has received.
        """
        self._send_all(_CHUNK.pack(index, nbytes, checksum))
        sent = self._send_file(fd, offset, nbytes)
        if sent < nbytes:
            self._send_all(view[offset + sent : offset + nbytes])

    def receive_chunk_header(self) -> tuple[int, int, int]:
        """Index, size in bytes and checksum of the chunk that comes next."""
        header = bytearray(_CHUNK.size)
        self._receive_all(memoryview(header), self.stall_s)
        index, nbytes, checksum = _CHUNK.unpack(header)
        return index, nbytes, checksum

    def receive_into(self, view: memoryview) -> None:
        """Fill a buffer with payload."""
        self._receive_all(view, self.stall_s)

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
                view = view[self._stream.send(view, self.stall_s) :]
        except TimeoutError as error:
            raise self._stalled("took") from error
        except OSError as error:
            raise self._broken(error) from error

    def _receive_all(self, view: memoryview, timeout_s: float | None, *, may_end: bool = False) -> None:
        got = 0
        try:
            while got < view.nbytes:
                count = self._stream.receive_into(view[got:], self.stall_s if got else timeout_s)
                if count == 0:
                    raise PeerClosed(f"{self.peer} closed the connection" + ("" if may_end and not got else " midway"))
                got += count
        except TimeoutError as error:
            raise self._stalled("sent", None if got else timeout_s) from error
        except OSError as error:
            if isinstance(error, RelayUnreachable):
                raise
            raise self._broken(error) from error

    def _stalled(self, verb: str, after_s: float | None = None) -> RelayTimeout:
        seconds = self.stall_s if after_s is None else after_s
        return RelayTimeout(f"{self.peer} {verb} nothing for {seconds:.3g} s; it is stuck, suspended or cut off")

    def _broken(self, error: OSError) -> RelayUnreachable:
        return RelayUnreachable(f"the connection to {self.peer} broke: {error.strerror or error}")
