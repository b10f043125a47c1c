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
from collections.abc import Callable, Iterator

from tailrace.paramserver.errors import (
    AuthenticationFailed,
    ParamServerError,
    ProtocolError,
    RelayTimeout,
    RelayUnreachable,
    TransportUnavailable,
)
from tailrace.paramserver.wire.address import format_address

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
                thread.start()

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
