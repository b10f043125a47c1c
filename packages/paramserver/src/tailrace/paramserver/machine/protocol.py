"""The protocols of the machine on which relays, publishers and readers run.

They reach it through a `HostInterface` only, so the tests run the same code in virtual time on simulated hosts, with threads,
connections and deaths that a seed decides.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Protocol


class ByteStream(Protocol):
    """One end of a byte stream. Only one thread at a time may use it, except for `shutdown`."""

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
        """Whether data arrived, or the peer closed, within `timeout_s` seconds."""
        ...

    def ends(self) -> tuple[str, str]:
        """The addresses of this end and of the other one, ``host:port`` in numbers; empty where there is none."""
        ...

    def shutdown(self) -> None:
        """End the connection under a thread that waits on it."""
        ...

    def close(self) -> None:
        """Give it back."""
        ...


class Listener(Protocol):
    """A listener for connections."""

    @property
    def port(self) -> int:
        """The port."""
        ...

    def accept(self) -> tuple[ByteStream, str] | None:
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
        """Wait for its end, at most `timeout` seconds."""
        ...

    def is_alive(self) -> bool:
        """Whether it still runs."""
        ...


class MemorySegment(Protocol):
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
    """The shared memory of one relay, named so that its next incarnation finds the remains of a crash."""

    cleaned: list[str]

    def create(self, slot: int, nbytes: int) -> MemorySegment:
        """New memory for a slot, replacing its old one. Raises NotEnoughSharedMemory if it does not fit."""
        ...

    def remove(self, slot: int) -> None:
        """Give the memory of a slot up, if it has any. Those who have it mapped keep it."""
        ...

    def introduction(self) -> dict[str, str]:
        """`owner_segment` and `nonce`, by which a reader finds out whether it sees the same memory."""
        ...

    def close(self) -> None:
        """Remove everything."""
        ...


class HostInterface(Protocol):
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

    def dial(self, address: str, timeout_s: float) -> ByteStream:
        """Connect. RelayUnreachable."""
        ...

    def claim(self, relay: str) -> Segments:
        """The shared memory of a relay of this name. RelayNameTaken."""
        ...

    def attach(self, name: str, *, writable: bool = False) -> MemorySegment:
        """Another process's shared memory. FileNotFoundError."""
        ...

    def owner_nonce(self, owner_segment: str) -> str | None:
        """The nonce that a relay's owner segment records; None where there is no such segment here."""
        ...
