"""A simulated host: `Machine` in virtual time."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field

from simulation.network import Network, SimulatedListener, SimulatedStream
from simulation.scheduler import Process, Scheduler
from simulation.waiting import SimulatedCondition, SimulatedLock, SimulatedThread

from tailrace.paramserver.errors import NotEnoughSharedMemory, RelayNameTaken
from tailrace.paramserver.machine.segments import PREFIX

_EPOCH_NS = 1_800_000_000_000_000_000


class SimulatedSegment:
    """Memory of a host, by name."""

    def __init__(self, name: str, memory: bytearray, *, writable: bool) -> None:
        self.name, self.fd, self.size, self.memory = name, -1, len(memory), memory
        self.view = memoryview(memory) if writable else memoryview(memory).toreadonly()

    def close(self) -> None:
        """See `Segment`."""


@dataclass
class SharedMemory:
    """The shared memory of one host. It outlives the processes.

    Args:
        limit: bytes that fit.
    """

    limit: int = 2**40
    segments: dict[str, bytearray] = field(default_factory=dict)
    owners: dict[str, tuple[Process, str]] = field(default_factory=dict)

    def used(self) -> int:
        """Bytes in segments that have a name."""
        return sum(map(len, self.segments.values()))


class SimulatedSegments:
    """The segments of one relay."""

    _nonces = itertools.count(1)

    def __init__(self, memory: SharedMemory, process: Process, relay: str) -> None:
        self._memory, self._process = memory, process
        self._base = f"{PREFIX}{relay}"
        owner = memory.owners.get(self._owner_name)
        if owner is not None and not owner[0].dead:
            raise RelayNameTaken(f"found a living relay named {relay!r}")
        self.cleaned = self._remove()
        self._nonce = f"{next(self._nonces):032x}"
        memory.owners[self._owner_name] = (process, self._nonce)

    def create(self, slot: int, nbytes: int) -> SimulatedSegment:
        """See `Segments`."""
        name = f"{self._base}-{slot}"
        self._memory.segments.pop(name, None)
        if self._memory.used() + nbytes > self._memory.limit:
            raise NotEnoughSharedMemory(f"found too little shared memory for {nbytes} bytes")
        self._memory.segments[name] = bytearray(max(1, nbytes))
        return SimulatedSegment(name, self._memory.segments[name], writable=True)

    def remove(self, slot: int) -> None:
        """See `Segments`."""
        if not self._process.dead:
            self._memory.segments.pop(f"{self._base}-{slot}", None)

    def introduction(self) -> dict[str, str]:
        """See `Segments`."""
        return {"owner_segment": self._owner_name, "nonce": self._nonce}

    def close(self) -> None:
        """See `Segments`."""
        if not self._process.dead:
            self._remove()
            self._memory.owners.pop(self._owner_name, None)

    @property
    def _owner_name(self) -> str:
        return f"{self._base}-o"

    def _remove(self) -> list[str]:
        names = [name for name in self._memory.segments if name.startswith(f"{self._base}-")]
        for name in names:
            del self._memory.segments[name]
        return names


class SimulatedMachine:
    """What one process sees of its host."""

    def __init__(self, scheduler: Scheduler, network: Network, memory: SharedMemory, process: Process) -> None:
        self.scheduler, self.network, self.memory, self.process = scheduler, network, memory, process

    def now(self) -> float:
        """See `Machine`. Every process has its own zero, so that times of two of them do not mix unnoticed."""
        self.scheduler.enter()
        return 1000.0 + self.process.clock_offset_s + self.scheduler.now

    def time_ns(self) -> int:
        """See `Machine`. The hosts' clocks do not agree."""
        self.scheduler.enter()
        return _EPOCH_NS + int(1e9 * (self.process.clock_offset_s + self.scheduler.now))

    def sleep(self, seconds: float) -> None:
        """See `Machine`."""
        self.scheduler.enter()
        self.scheduler.block("sleep", self.scheduler.now + seconds)

    def lock(self) -> SimulatedLock:
        """See `Machine`."""
        return SimulatedLock(self.scheduler)

    def condition(self) -> SimulatedCondition:
        """See `Machine`."""
        return SimulatedCondition(self.scheduler)

    def spawn(self, run: Callable[[], None], name: str) -> SimulatedThread:
        """See `Machine`."""
        self.scheduler.enter()
        return SimulatedThread(self.scheduler, self.scheduler.spawn(run, name, self.process))

    def listen(self, host: str, port: int) -> SimulatedListener:
        """See `Machine`."""
        self.scheduler.enter()
        return self.network.listen(self.process, host, port)

    def dial(self, address: str, timeout_s: float) -> SimulatedStream:
        """See `Machine`."""
        self.scheduler.enter()
        return self.network.dial(self.process, address, timeout_s)

    def claim(self, relay: str) -> SimulatedSegments:
        """See `Machine`."""
        self.scheduler.enter()
        return SimulatedSegments(self.memory, self.process, relay)

    def attach(self, name: str, *, writable: bool = False) -> SimulatedSegment:
        """See `Machine`."""
        self.scheduler.enter()
        if name not in self.memory.segments:
            raise FileNotFoundError(name)
        return SimulatedSegment(name, self.memory.segments[name], writable=writable)

    def owner_nonce(self, owner_segment: str) -> str | None:
        """See `Machine`."""
        self.scheduler.enter()
        owner = self.memory.owners.get(owner_segment)
        return None if owner is None else owner[1]
