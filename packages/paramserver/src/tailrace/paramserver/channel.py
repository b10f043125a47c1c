"""A connection: length-prefixed JSON messages with raw payload between them, every wait with a deadline.

    message := length (4 bytes, big-endian) + JSON object
    chunk   := index (4) + size (4) + xxh3 checksum (8) + payload

Nothing that arrives is evaluated or unpickled. Lengths are checked before memory is allocated for them.
"""

from __future__ import annotations

import errno
import json
import os
import select
import socket
import struct
from typing import Any

from tailrace.paramserver.address import parse_address
from tailrace.paramserver.errors import PeerClosed, ProtocolError, RelayTimeout, RelayUnreachable, from_wire

_LENGTH = struct.Struct("!I")
_CHUNK = struct.Struct("!IIQ")
MAX_MESSAGE = 64 * 2**20
_NO_SENDFILE = {errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOTSOCK, errno.ENODEV}


class Channel:
    """One end of a connection, used by one thread at a time.

    Args:
        sock: a connected stream socket.
        stall_s: how long the peer may make no progress inside a message or a chunk.
        peer: how error messages call the other end.
    """

    def __init__(self, sock: socket.socket, stall_s: float, peer: str) -> None:
        self._sock, self.stall_s, self.peer = sock, stall_s, peer
        self._sendfile = hasattr(os, "sendfile")
        sock.settimeout(stall_s)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

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
        return _ready(self._sock, select.POLLIN, timeout_s)

    def send_chunk(self, index: int, checksum: int, fd: int, view: memoryview, offset: int, nbytes: int) -> None:
        """Send a chunk from memory that is `view` here and the file `fd` to the kernel.

        The kernel may still refer to that memory when this returns, until the peer acknowledges what it has received.
        """
        self._send_all(_CHUNK.pack(index, nbytes, checksum))
        if self._sendfile and fd >= 0:
            sent = self._send_file(fd, offset, nbytes)
            offset, nbytes = offset + sent, nbytes - sent
        if nbytes:
            self._send_all(view[offset : offset + nbytes])

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
        try:
            self._sock.shutdown(socket.SHUT_RDWR)
        except OSError as error:
            if error.errno not in (errno.ENOTCONN, errno.EBADF):
                raise

    def close(self) -> None:
        """Close the socket."""
        self._sock.close()

    def _send_file(self, fd: int, offset: int, nbytes: int) -> int:
        sent = 0
        while sent < nbytes:
            try:
                count = os.sendfile(self._sock.fileno(), fd, offset + sent, nbytes - sent)
            except BlockingIOError:
                if not _ready(self._sock, select.POLLOUT, self.stall_s):
                    raise self._stalled("took") from None
                continue
            except OSError as error:
                if error.errno in _NO_SENDFILE and sent == 0:
                    self._sendfile = False
                    return 0
                raise self._broken(error) from error
            if count == 0:
                raise ProtocolError(f"the memory to send ended {nbytes - sent} bytes early")
            sent += count
        return sent

    def _send_all(self, data: bytes | memoryview) -> None:
        view = memoryview(data)
        try:
            while view.nbytes:  # not sendall: its timeout is for the whole, ours for progress
                view = view[self._sock.send(view) :]
        except TimeoutError as error:
            raise self._stalled("took") from error
        except OSError as error:
            raise self._broken(error) from error

    def _receive_all(self, view: memoryview, timeout_s: float | None, *, may_end: bool = False) -> None:
        got = 0
        try:
            self._sock.settimeout(timeout_s)
            while got < view.nbytes:
                count = self._sock.recv_into(view[got:])
                if count == 0:
                    raise PeerClosed(f"{self.peer} closed the connection" + ("" if may_end and not got else " midway"))
                if got == 0:
                    self._sock.settimeout(self.stall_s)
                got += count
        except TimeoutError as error:
            raise self._stalled("sent", timeout_s if got == 0 else None) from error
        except OSError as error:
            if isinstance(error, RelayUnreachable):
                raise
            raise self._broken(error) from error
        finally:
            if self._sock.fileno() >= 0:
                self._sock.settimeout(self.stall_s)

    def _stalled(self, verb: str, after_s: float | None = None) -> RelayTimeout:
        seconds = self.stall_s if after_s is None else after_s
        return RelayTimeout(f"{self.peer} {verb} nothing for {seconds:.3g} s; it is stuck, suspended or cut off")

    def _broken(self, error: OSError) -> RelayUnreachable:
        return RelayUnreachable(f"the connection to {self.peer} broke: {error.strerror or error}")


def _ready(sock: socket.socket, event: int, timeout_s: float) -> bool:
    poll = select.poll()  # not select(): an engine's process may have descriptors over 1024
    poll.register(sock, event)
    return bool(poll.poll(1000 * timeout_s))


def dial(address: str, *, timeout_s: float, stall_s: float) -> Channel:
    """Connect, without authentication.

    Raises:
        RelayUnreachable: nobody listens there, or not in time.
    """
    try:
        sock = socket.create_connection(parse_address(address), timeout=timeout_s)
    except (OSError, UnicodeError) as error:  # UnicodeError: not even a host name
        why = getattr(error, "strerror", None) or error
        raise RelayUnreachable(
            f"cannot reach the relay {address}: {why}; is it running, and is the port right?"
        ) from error
    return Channel(sock, stall_s, f"the relay {address}")
