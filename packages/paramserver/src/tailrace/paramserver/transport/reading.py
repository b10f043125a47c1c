"""The shared part of transports over libraries: finding one, reaching an export, reading, and waiting for a transfer."""

from __future__ import annotations

import importlib.util
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from tailrace.paramserver.errors import ProtocolError, RelayUnreachable
from tailrace.paramserver.transport.device import DeviceMemory
from tailrace.paramserver.transport.listener import check_range, ended, enter, naming
from tailrace.paramserver.transport.protocol import Export, Exportable

_SPINS = 2000  # about a millisecond of asking without a pause: most ranges are there by then
_PAUSE_S = 5e-5
_LOOK_EVERY = 64  # turns between two looks at the clock and at the other end


class LibraryTransport(ABC):
    """A `Transport` over a library that may be missing.

    Args:
        host: the interface on which the door of an export listens, and under which readers reach it.
    """

    name: str
    module: ClassVar[str]
    """The library's module, which the extra of the transport's name installs."""

    def __init__(self, host: str = "127.0.0.1") -> None:
        self.host = host

    def unavailable(self) -> str | None:
        if importlib.util.find_spec(self.module) is None:
            return f"{self.module} is not installed; pip install 'tailrace-paramserver[{self.name}]'"
        try:
            self.load()
        except (ImportError, OSError) as error:
            return f"{self.module} does not load: {error}"
        return None

    def open(self, descriptor: Mapping[str, Any], *, timeout_s: float) -> LibrarySource:
        deadline = time.monotonic() + timeout_s
        sock, nbytes, address = enter(self.name, descriptor, timeout_s)
        where = f"the exporter {address}"
        try:
            with naming(where, timeout_s):
                return self.reach(sock, nbytes, where, deadline)
        except BaseException:
            sock.close()
            raise

    @abstractmethod
    def export(self, memory: Exportable) -> Export:
        """See `Transport`."""

    @abstractmethod
    def load(self) -> object:
        """Import the library."""

    @abstractmethod
    def reach(self, sock: socket.socket, nbytes: int, where: str, deadline: float) -> LibrarySource:
        """The source behind a connection that was let in, until a monotonic time."""


class LibrarySource(ABC):
    """See `RemoteMemory`. Memory of a device can be read into, too.

    `handle` is the library's own object. It is None once the source is closed, or after a read that broke off and might write
    later.
    """

    def __init__(self, sock: socket.socket, nbytes: int, where: str) -> None:
        self._sock, self._nbytes, self._where = sock, nbytes, where
        self.handle: Any = None

    def read_into(self, view: memoryview | DeviceMemory, offset: int, timeout_s: float) -> None:
        check_destination(view, offset, self._nbytes)
        if self.handle is None:
            raise RelayUnreachable(f"the source at {self._where} is closed")
        if view.nbytes == 0:
            return
        deadline = time.monotonic() + timeout_s
        with naming(self._where, timeout_s):
            if ended(self._sock):
                raise EOFError
            self.transfer(view, offset, deadline)

    def close(self) -> None:
        self.handle = None
        self._sock.close()

    @abstractmethod
    def transfer(self, view: memoryview | DeviceMemory, offset: int, deadline: float) -> None:
        """Read a range that was checked. What is raised leaves nothing that writes later."""


def check_destination(into: memoryview | DeviceMemory, offset: int, size: int) -> None:
    """See `check_range`; memory of a device is a destination too.

    Raises:
        ProtocolError: the range sticks out, or the buffer is read-only or has gaps.
    """
    if isinstance(into, DeviceMemory):
        if offset < 0 or offset + into.nbytes > size:
            raise ProtocolError(f"found a range of {into.nbytes} bytes at {offset!r}, expected it within {size} bytes")
    else:
        check_range(into, offset, size)


def await_transfer(
    done: Callable[[], bool],
    sock: socket.socket,
    deadline: float | None,
    over: Callable[[socket.socket], bool] = ended,
) -> None:
    """Ask until a transfer is done.

    Args:
        done: makes progress, and says whether it is.
        sock: the connection to the other end.
        deadline: monotonic time, or None to wait as long as the other end lives.
        over: says whether the other end is gone. `ended` if it is silent meanwhile, `gone` if it may send.

    Raises:
        EOFError: the other end is gone.
        TimeoutError: the deadline has passed.
    """
    turns = 0
    while not done():
        turns += 1
        if turns % _LOOK_EVERY == 0:
            if over(sock):
                raise EOFError
            if deadline is not None and time.monotonic() >= deadline:
                raise TimeoutError
        if turns > _SPINS:
            time.sleep(_PAUSE_S)
