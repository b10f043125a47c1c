"""The real machine: clock, threads, shared memory, and connections over TCP."""

from __future__ import annotations

import errno
import os
import select
import socket
import struct
import threading
import time
from collections.abc import Callable
from typing import Any

from tailrace.paramserver.errors import PortInUse, RelayUnreachable
from tailrace.paramserver.machine.segments import MappedSegment, SegmentOwner, read_owner
from tailrace.paramserver.wire.channel import format_address, parse_address

_TIMEVAL = struct.Struct("@ll")  # struct timeval
_NO_SENDFILE = {errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOTSOCK, errno.ENODEV}


class SocketStream:
    """A connected stream socket."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._sendfile = hasattr(os, "sendfile")
        self._limits: dict[int, float | None] = {}
        sock.settimeout(None)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, data: memoryview, timeout_s: float) -> int:
        self._limit(socket.SO_SNDTIMEO, timeout_s)
        try:
            return self._sock.send(data)
        except BlockingIOError:
            raise TimeoutError from None

    def send_file(self, fd: int, offset: int, nbytes: int, timeout_s: float) -> int:
        if not self._sendfile or fd < 0:
            return 0
        self._limit(socket.SO_SNDTIMEO, timeout_s)
        try:
            count = os.sendfile(self._sock.fileno(), fd, offset, nbytes)
        except BlockingIOError:
            raise TimeoutError from None
        except OSError as error:
            if error.errno not in _NO_SENDFILE:
                raise
            self._sendfile = False
            return 0
        if count == 0:
            raise OSError(errno.EIO, f"the memory to send ended {nbytes} bytes early")
        return count

    def receive_into(self, view: memoryview, timeout_s: float | None) -> int:
        self._limit(socket.SO_RCVTIMEO, timeout_s)
        try:
            return self._sock.recv_into(view)
        except BlockingIOError:
            raise TimeoutError from None

    def readable(self, timeout_s: float) -> bool:
        return _ready(self._sock, select.POLLIN, timeout_s)

    def ends(self) -> tuple[str, str]:
        return _address(self._sock.getsockname), _address(self._sock.getpeername)

    def _limit(self, option: int, timeout_s: float | None) -> None:
        """Set how long the kernel waits in a call. Python's own timeout would cost two more system calls each time."""
        if option not in self._limits or self._limits[option] != timeout_s:
            microseconds = 0 if timeout_s is None else max(1, round(timeout_s * 1e6))  # 0 waits for ever
            self._sock.setsockopt(socket.SOL_SOCKET, option, _TIMEVAL.pack(*divmod(microseconds, 1_000_000)))
            self._limits[option] = timeout_s

    def shutdown(self) -> None:
        try:
            self._sock.shutdown(socket.SHUT_RDWR)
        except OSError as error:
            if error.errno not in (errno.ENOTCONN, errno.EBADF):
                raise

    def close(self) -> None:
        self._sock.close()


class SocketListener:
    """A listening socket.

    Raises:
        PortInUse: another process has the port.
        RelayUnreachable: the interface cannot be listened on.
    """

    def __init__(self, host: str, port: int) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            self._sock = socket.create_server((host, port), family=family, backlog=128)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise PortInUse(f"port {port} on {host} is in use; stop what listens there, or use port 0") from error
            raise RelayUnreachable(f"cannot listen on {host} port {port}: {error.strerror or error}") from error
        except OverflowError as error:
            raise RelayUnreachable(f"cannot listen on {host} port {port}: expected a port from 0 to 65535") from error
        self._closed = False

    @property
    def port(self) -> int:
        return int(self._sock.getsockname()[1])

    def accept(self) -> tuple[SocketStream, str] | None:
        try:
            sock, peer = self._sock.accept()
        except OSError:
            if self._closed:
                return None
            raise
        return SocketStream(sock), format_address(*peer[:2])

    def close(self) -> None:
        self._closed = True
        try:
            self._sock.shutdown(socket.SHUT_RDWR)  # wakes accept on Linux; elsewhere close does
        except OSError as error:
            if error.errno != errno.ENOTCONN:
                raise
        self._sock.close()


def dial(address: str, timeout_s: float) -> SocketStream:
    """Connect.

    Raises:
        RelayUnreachable: nobody listens there, or not in time.
    """
    try:
        return SocketStream(socket.create_connection(parse_address(address), timeout=timeout_s))
    except (OSError, UnicodeError) as error:  # UnicodeError: not even a host name
        why = getattr(error, "strerror", None) or error
        raise RelayUnreachable(
            f"cannot reach the relay {address}: {why}; is it running, and is the port right?"
        ) from error


def _address(name: Callable[[], Any]) -> str:
    """An address, as the other end calls it too: without the zone of an interface, and IPv4 as IPv4."""
    try:
        found = name()
    except OSError:  # the peer is gone
        return ""
    if not isinstance(found, tuple):
        return ""  # of a socket without a port
    host = str(found[0]).partition("%")[0]
    return format_address(host.removeprefix("::ffff:") if "." in host else host, int(found[1]))


def _ready(sock: socket.socket, event: int, timeout_s: float) -> bool:
    poll = select.poll()  # not select(): an engine's process may have descriptors over 1024
    poll.register(sock, event)
    return bool(poll.poll(1000 * timeout_s))


class ThisHost:
    """This host: the kernel's clock, threads, TCP and POSIX shared memory (see `Machine`)."""

    def now(self) -> float:
        return time.monotonic()

    def time_ns(self) -> int:
        return time.time_ns()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def lock(self) -> threading.RLock:
        return threading.RLock()

    def condition(self) -> threading.Condition:
        return threading.Condition()

    def spawn(self, run: Callable[[], None], name: str) -> threading.Thread:
        thread = threading.Thread(target=run, name=name, daemon=True)
        thread.start()
        return thread

    def listen(self, host: str, port: int) -> SocketListener:
        return SocketListener(host, port)

    def dial(self, address: str, timeout_s: float) -> SocketStream:
        return dial(address, timeout_s)

    def claim(self, relay: str) -> SegmentOwner:
        return SegmentOwner(relay)

    def attach(self, name: str, *, writable: bool = False) -> MappedSegment:
        return MappedSegment.attach(name, writable=writable)

    def owner_nonce(self, owner_segment: str) -> str | None:
        found = read_owner(owner_segment)
        return None if found is None else found[1]


HOST = ThisHost()
