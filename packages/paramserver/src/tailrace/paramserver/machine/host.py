"""The real machine."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from tailrace.paramserver.machine import sockets
from tailrace.paramserver.machine.segments import MappedSegment, SegmentOwner, read_owner


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

    def listen(self, host: str, port: int) -> sockets.SocketListener:
        return sockets.SocketListener(host, port)

    def dial(self, address: str, timeout_s: float) -> sockets.SocketStream:
        return sockets.dial(address, timeout_s)

    def claim(self, relay: str) -> SegmentOwner:
        return SegmentOwner(relay)

    def attach(self, name: str, *, writable: bool = False) -> MappedSegment:
        return MappedSegment.attach(name, writable=writable)

    def owner_nonce(self, owner_segment: str) -> str | None:
        found = read_owner(owner_segment)
        return None if found is None else found[1]


HOST = ThisHost()
