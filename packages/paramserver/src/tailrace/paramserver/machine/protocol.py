"""What relays, publishers and readers need of the machine that they run on.

They reach it through a `Machine` only, so the tests run the same code in virtual time on simulated hosts, with threads,
connections and deaths that a seed decides.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Protocol


class Stream(Protocol):
    """One end of a connection that carries bytes in order. One thread at a time uses it, but for `shutdown`."""

    def send(self, data: memoryview, timeout_s: float) -> int:
        """Send some of the data; how many bytes. TimeoutError if the peer takes none, OSError if the link broke."""
        ...

    def send_file(self, fd: int, offset: int, nbytes: int, timeout_s: float) -> int:
        """Send from a file; how many bytes, 0 if this stream cannot."""
        ...

    def receive_into(self, view: memoryview, timeout_s: float | None) -> int:
        """Fill some of a buffer; how many bytes, 0 once the peer has closed. TimeoutError, OSError as for `send`."""
        ...

    def readable(self, timeout_s: float) -> bool:
        """Whether something arrived, or the peer closed, within so many seconds."""
        ...

    def shutdown(self) -> None:
        """End the connection under a thread that waits on it."""
        ...

    def close(self) -> None:
        """Give it back."""
        ...


class Listener(Protocol):
    """Where connections arrive."""

    @property
    def port(self) -> int:
        """The port."""
        ...

    def accept(self) -> tuple[Stream, str] | None:
        """The next connection and its peer's address; None after `close`. OSError if none can be taken just now."""
        ...

    def close(self) -> None:
        """Stop, and wake `accept`."""
        ...


class Lock(Protocol):
    """A mutual exclusion."""

    def __enter__(self) -> object: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> object: ...


class Condition(Lock, Protocol):
    """A lock that can be waited on."""

    def wait(self, timeout: float | None = None) -> bool:
        """Release the lock until `notify_all`; False if `timeout` seconds passed first."""
        ...

    def notify_all(self) -> None:
        """Wake all who wait."""
        ...


class Thread(Protocol):
    """A thread that was started."""

    def join(self, timeout: float | None = None) -> None:
        """Wait for its end, at most so many seconds."""
        ...

    def is_alive(self) -> bool:
        """Whether it still runs."""
        ...


class Segment(Protocol):
    """A piece of memory, shared or not.

    `fd` is the same bytes as a file to the kernel, or negative.
    """

    name: str
    fd: int
    size: int
    view: memoryview

    def close(self) -> None:
        """Give it back."""
        ...


class Segments(Protocol):
    """The shared memory of one relay, named so that its next life finds what a crash left."""

    cleaned: list[str]

    def create(self, slot: int, nbytes: int) -> Segment:
        """New memory for a slot, in place of what it had. NotEnoughSharedMemory if it does not fit."""
        ...

    def remove(self, slot: int) -> None:
        """Give the memory of a slot up, if it has any. Those who have it mapped keep it."""
        ...

    def introduction(self) -> dict[str, str]:
        """What a reader needs to find out whether it sees the same memory: `owner_segment` and `nonce`."""
        ...

    def close(self) -> None:
        """Remove everything."""
        ...


class Machine(Protocol):
    """A host, or a simulated one."""

    def now(self) -> float:
        """Monotonic time in seconds."""
        ...

    def time_ns(self) -> int:
        """Wall-clock time in nanoseconds."""
        ...

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        ...

    def lock(self) -> Lock:
        """A lock that one thread may take several times."""
        ...

    def condition(self) -> Condition:
        """A condition with a lock that one thread may take several times."""
        ...

    def spawn(self, run: Callable[[], None], name: str) -> Thread:
        """Start a thread. It does not keep the process alive."""
        ...

    def listen(self, host: str, port: int) -> Listener:
        """Take a port, 0 for any. PortInUse, RelayUnreachable."""
        ...

    def dial(self, address: str, timeout_s: float) -> Stream:
        """Connect. RelayUnreachable."""
        ...

    def claim(self, relay: str) -> Segments:
        """The shared memory of a relay of this name. RelayNameTaken."""
        ...

    def attach(self, name: str, *, writable: bool = False) -> Segment:
        """Another process's shared memory. FileNotFoundError."""
        ...

    def owner_nonce(self, owner_segment: str) -> str | None:
        """The nonce that a relay's owner segment records; None where there is no such segment here."""
        ...
