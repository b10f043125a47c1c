"""The real machine."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from tailrace.paramserver.machine import sockets
from tailrace.paramserver.machine.segments import Segment, SegmentOwner, read_owner


class Host:
    """This host: the kernel's clock, threads, TCP and POSIX shared memory (see `Machine`)."""

    def now(self) -> float:
        """See `Machine`."""
        return time.monotonic()

    def time_ns(self) -> int:
        """See `Machine`."""
        return time.time_ns()

    def sleep(self, seconds: float) -> None:
        """See `Machine`."""
        time.sleep(seconds)

    def lock(self) -> threading.RLock:
        """See `Machine`."""
        return threading.RLock()

    def condition(self) -> threading.Condition:
        """See `Machine`."""
        return threading.Condition()

    def spawn(self, run: Callable[[], None], name: str) -> threading.Thread:
        """See `Machine`."""
        thread = threading.Thread(target=run, name=name, daemon=True)
        thread.start()
        return thread

    def listen(self, host: str, port: int) -> sockets.SocketListener:
        """See `Machine`."""
        return sockets.SocketListener(host, port)

    def dial(self, address: str, timeout_s: float) -> sockets.SocketStream:
        """See `Machine`."""
        return sockets.dial(address, timeout_s)

    def claim(self, relay: str) -> SegmentOwner:
        """See `Machine`."""
        return SegmentOwner(relay)

    def attach(self, name: str, *, writable: bool = False) -> Segment:
        """See `Machine`."""
        return Segment.attach(name, writable=writable)

    def owner_nonce(self, owner_segment: str) -> str | None:
        """See `Machine`."""
        found = read_owner(owner_segment)
        return None if found is None else found[1]


HOST = Host()
