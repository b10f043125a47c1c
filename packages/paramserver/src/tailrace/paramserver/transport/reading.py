"""The shared part of transports over libraries: targets of bytes, and waiting for a transfer."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable

from tailrace.paramserver.errors import ProtocolError
from tailrace.paramserver.transport.device import DeviceMemory
from tailrace.paramserver.transport.fields import check_range
from tailrace.paramserver.transport.listener import ended

_SPINS = 2000  # about a millisecond of asking without a pause: most ranges are there by then
_PAUSE_S = 5e-5
_LOOK_EVERY = 64  # turns between two looks at the clock and at the other end


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
