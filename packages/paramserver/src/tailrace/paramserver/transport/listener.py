"""The door of one export: who shows its secret is let in, and talks to the exporter until the export closes.

    reader -> exporter    the secret (32 bytes)
    exporter -> reader    "+", then whatever the transport says; or "-"

    consumes     connections
    waits for    the secret, all of it, 10 s at most; then what the transport waits for
    unblocked by the reader's death (the kernel closes its socket), `Door.close`

The reader's end of the connection tells it at once when the exporter dies. Transports run on real hosts only, so they use
sockets and threads directly; the simulated machine sends inline.
"""

from __future__ import annotations

import contextlib
import hmac
import logging
import secrets
import select
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tailrace.paramserver.errors import (
    AuthenticationFailed,
    ParamServerError,
    ProtocolError,
    RelayTimeout,
    RelayUnreachable,
    TransportUnavailable,
)
from tailrace.paramserver.transport.device import DeviceMemory
from tailrace.paramserver.transport.protocol import Exportable
from tailrace.paramserver.wire.channel import format_address

_log = logging.getLogger(__name__)
SECRET_BYTES = 32
_LENGTH = struct.Struct("!I")
_KNOCK_S = 10.0
_CLOSE_S = 5.0
_MAX_READERS = 256  # who showed the secret
_MAX_WAITING = 64  # who did not yet: one more, and the oldest of them must go


class Door:
    """Lets readers in, one thread for each.

    Args:
        listener: a listening socket; it is closed with the door.
        serve: talks to one reader, on its thread, until it returns or raises. Its socket is closed after that, and shut
            down under it when the door closes.
    """

    def __init__(self, listener: socket.socket, serve: Callable[[socket.socket], None]) -> None:
        self.secret = secrets.token_hex(SECRET_BYTES)
        self._listener, self._serve = listener, serve
        self._lock = threading.Lock()
        self._readers: dict[socket.socket, threading.Thread] = {}
        self._waiting: dict[socket.socket, None] = {}  # of the readers, oldest first
        self._closed = False
        self._acceptor = threading.Thread(target=self._accept, name="tailrace export", daemon=True)
        self._acceptor.start()

    def close(self) -> None:
        """Accept no further connections, and wait until all are served. A second call does nothing."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            readers = dict(self._readers)
            for sock in readers:
                _shutdown(sock)
        _shutdown(self._listener)  # wakes accept on Linux; elsewhere close does
        self._listener.close()
        for thread in (self._acceptor, *readers.values()):
            if thread is not threading.current_thread():
                thread.join(_CLOSE_S)

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                if self._closed:
                    return
                time.sleep(0.1)  # out of descriptors: others must end first
                continue
            thread = threading.Thread(target=self._admit, args=(sock,), name="tailrace export reader", daemon=True)
            with self._lock:
                if self._closed:
                    sock.close()
                    continue
                if len(self._waiting) >= _MAX_WAITING:
                    oldest = next(iter(self._waiting))
                    del self._waiting[oldest]
                    _shutdown(oldest)
                self._readers[sock], self._waiting[sock] = thread, None
                try:
                    thread.start()
                except RuntimeError as error:  # out of threads: others must end first
                    _log.warning("an export cannot serve another reader: %s", error)
                    del self._readers[sock], self._waiting[sock]
                    sock.close()

    def _admit(self, sock: socket.socket) -> None:
        try:
            shown = bytearray(SECRET_BYTES)
            fill(sock, memoryview(shown), time.monotonic() + _KNOCK_S)
            with self._lock:
                self._waiting.pop(sock, None)
                crowded = len(self._readers) - len(self._waiting) > _MAX_READERS
            if crowded or not hmac.compare_digest(shown.hex(), self.secret):
                sock.sendall(b"-")
                return
            sock.sendall(b"+")
            sock.settimeout(None)
            self._serve(sock)
        except (OSError, EOFError):
            pass  # the reader died or went away: nothing here depends on it
        except ParamServerError as error:
            _log.warning("an export serves a reader no longer: %s", error)
        finally:
            with self._lock:
                self._readers.pop(sock, None)
                self._waiting.pop(sock, None)
                sock.close()


def listen(host: str) -> socket.socket:
    """A listening TCP socket on any free port.

    Raises:
        TransportUnavailable: the interface cannot be listened on, or is all of them, which is no address for a reader.
    """
    if host in ("", "0.0.0.0", "::"):  # noqa: S104  refused, not used
        raise TransportUnavailable(
            f"found the host {host!r}, expected the address under which readers reach this process"
        )
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, 0), family=family, backlog=64)
    except OSError as error:
        raise TransportUnavailable(f"cannot listen on {host}: {error.strerror or error}") from error


def knock(family: int, address: tuple[str, int] | str, secret: str, timeout_s: float) -> socket.socket:
    """A connection that was let in.

    Raises:
        RelayUnreachable, RelayTimeout, AuthenticationFailed: nobody is there, nobody answers, the secret is wrong.
    """
    where = f"the exporter {format_address(*address) if isinstance(address, tuple) else 'on this host'}"
    deadline = time.monotonic() + timeout_s
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        with naming(where, timeout_s):
            sock.settimeout(left(deadline))
            sock.connect(address)
            if family != socket.AF_UNIX:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.sendall(bytes.fromhex(secret))
            sock.settimeout(left(deadline))
            if receive(sock, 1) != b"+":
                raise AuthenticationFailed(f"{where} does not know the secret; the memory is exported no longer")
    except BaseException:
        sock.close()
        raise
    return sock


@contextlib.contextmanager
def naming(where: str, timeout_s: float) -> Iterator[None]:
    """Turns errors of a socket into this package's errors."""
    try:
        yield
    except ParamServerError:
        raise
    except TimeoutError as error:
        raise RelayTimeout(
            f"{where} did not deliver in {timeout_s:.3g} s; it is suspended, cut off or too slow"
        ) from error
    except EOFError as error:
        raise RelayUnreachable(f"{where} closed the connection: it died, or exports this no longer") from error
    except OSError as error:
        raise RelayUnreachable(f"{where} cannot be reached: {error.strerror or error}") from error


def left(deadline: float) -> float:
    """Seconds until then. TimeoutError if there are none."""
    seconds = deadline - time.monotonic()
    if seconds <= 0:
        raise TimeoutError
    return seconds


def receive(sock: socket.socket, nbytes: int) -> bytes:
    """Receive exactly `nbytes` bytes. Raises EOFError if the connection ends before."""
    data = bytearray(nbytes)
    fill(sock, memoryview(data), None)
    return bytes(data)


def fill(sock: socket.socket, view: memoryview, deadline: float | None) -> None:
    """Fill a buffer from a connection. EOFError, TimeoutError, OSError."""
    got = 0
    while got < view.nbytes:
        if deadline is not None:
            sock.settimeout(left(deadline))
        count = sock.recv_into(view[got:])
        if count == 0:
            raise EOFError
        got += count


def send_blob(sock: socket.socket, data: bytes) -> None:
    """Send bytes with their length."""
    sock.sendall(_LENGTH.pack(len(data)) + data)


def receive_blob(sock: socket.socket, limit: int = 2**20) -> bytes:
    """What `send_blob` sent. EOFError, TimeoutError, OSError.

    Raises:
        ProtocolError: it is longer than the limit.
    """
    (length,) = _LENGTH.unpack(receive(sock, _LENGTH.size))
    if length > limit:
        raise ProtocolError(f"a peer announced {length} bytes, expected at most {limit}")
    return receive(sock, length)


def ended(sock: socket.socket) -> bool:
    """Whether the other end of a connection that should be silent now is gone."""
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(0))


def gone(sock: socket.socket) -> bool:
    """Whether the other end of a connection is gone, even with unread data. Linux only."""
    poll = select.poll()
    poll.register(sock, select.POLLRDHUP)
    return bool(poll.poll(0))


def _shutdown(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):  # not connected, or closed already
        sock.shutdown(socket.SHUT_RDWR)


# An export's descriptor, each field checked as it is read, and the ranges of exported memory that a peer may name.

_MAX_BYTES = 2**48


class Fields:
    """The fields of a descriptor, each checked as it is read.

    Args:
        transport: the transport that it must be of.
        descriptor: the value received from a peer.

    Raises:
        ProtocolError: from the constructor and every method: what was found, what was expected.
    """

    def __init__(self, transport: str, descriptor: Mapping[str, Any]) -> None:
        if not isinstance(descriptor, Mapping):
            raise ProtocolError(f"found a {type(descriptor).__name__}, expected a descriptor of exported memory")
        self._transport, self._data = transport, descriptor
        if descriptor.get("transport") != transport:
            raise self._wrong("transport", repr(transport))

    def text(self, field: str, limit: int = 256) -> str:
        """A short text."""
        value = self._data.get(field)
        if not isinstance(value, str) or not 0 < len(value) <= limit or not value.isprintable():
            raise self._wrong(field, f"1 to {limit} printable characters")
        return value

    def number(self, field: str, low: int, high: int) -> int:
        """An integer in a range."""
        value = self._data.get(field)
        if type(value) is not int or not low <= value <= high:
            raise self._wrong(field, f"an integer from {low} to {high}")
        return value

    def nbytes(self) -> int:
        """The size of the exported memory."""
        return self.number("nbytes", 0, _MAX_BYTES)

    def port(self) -> int:
        """A TCP port."""
        return self.number("port", 1, 65535)

    def secret(self) -> str:
        """The export's secret."""
        value = self._data.get("secret")
        if not isinstance(value, str) or len(value) != 2 * SECRET_BYTES or set(value) - set("0123456789abcdef"):
            raise ProtocolError(  # without what was found: it may be one
                f"secret: the descriptor of a {self._transport} export has none of {2 * SECRET_BYTES} hex digits"
            )
        return value

    def _wrong(self, field: str, expected: str) -> ProtocolError:
        found = str(self._data.get(field))[:40]
        return ProtocolError(
            f"{field}: found {found!r} in the descriptor of a {self._transport} export, expected {expected}"
        )


def check_range(view: memoryview, offset: int, size: int) -> None:
    """Refuse to read outside of exported memory, or into memory that cannot be written.

    Raises:
        ProtocolError: the range sticks out, or the buffer is read-only or has gaps.
    """
    if type(offset) is not int or offset < 0 or offset + view.nbytes > size:
        raise ProtocolError(f"found a range of {view.nbytes} bytes at {offset!r}, expected it within {size} bytes")
    if view.readonly or not view.c_contiguous:
        raise ProtocolError("found a read-only buffer or one with gaps, expected a writable contiguous one")


def check_host_memory(transport: str, memory: Exportable) -> None:
    """Refuse device memory.

    Raises:
        TransportUnavailable: it is on a device.
    """
    if isinstance(memory, DeviceMemory):
        raise TransportUnavailable(
            f"{memory.name!r}: found memory of a device, which {transport} cannot export; use ucx or nixl"
        )


def described(transport: str, listener: socket.socket, door: Door, nbytes: int) -> dict[str, Any]:
    """The descriptor of an export of `nbytes` bytes behind a door on a port."""
    host, port = listener.getsockname()[:2]
    return {"transport": transport, "host": host, "port": port, "nbytes": nbytes, "secret": door.secret}


def enter(transport: str, descriptor: Mapping[str, Any], timeout_s: float) -> tuple[socket.socket, int, str]:
    """Go to the door that a descriptor names: the connection, the export's size in bytes, and the door's address.

    Raises:
        ParamServerError: the descriptor is malformed, or nobody lets us in.
    """
    fields = Fields(transport, descriptor)
    host, port, nbytes, secret = fields.text("host"), fields.port(), fields.nbytes(), fields.secret()
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return knock(family, (host, port), secret, timeout_s), nbytes, format_address(host, port)
