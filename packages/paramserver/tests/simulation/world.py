"""The processes of one simulated run, and what is known about them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from simulation.machine import SharedMemory, SimulatedMachine
from simulation.network import Network
from simulation.oracle import Oracle
from simulation.schedule import Schedule
from simulation.scheduler import Process, Scheduler
from simulation.waiting import Mailbox, Signal

from tailrace.paramserver.clients.staging import StagingBuffer
from tailrace.paramserver.errors import (
    ChunkDamaged,
    LeaseExpired,
    ParamServerError,
    ProtocolError,
    PublishTimeout,
    RelayTimeout,
    RelayUnreachable,
    SlotBusy,
    VersionNotYet,
    VersionRetired,
    VersionSuperseded,
)

TOKEN = "a token of the simulation"

_ALWAYS = (VersionRetired, VersionNotYet, VersionSuperseded, PublishTimeout)
_WHEN_DISTURBED = (RelayUnreachable, RelayTimeout, SlotBusy)


@dataclass(eq=False)
class Relay:
    """A life of a relay. `address` is empty until it serves."""

    index: int
    name: str
    process: Process
    address: str = ""
    left_memory: bool = False
    cleaned: list[str] = field(default_factory=list)

    @property
    def serving(self) -> bool:
        """Whether it lives and has an address."""
        return bool(self.address) and not self.process.dead


class World:
    """Everything of one run."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.scheduler = Scheduler(schedule.seed, preempt=schedule.preempt, limit_s=400.0)
        self.network = Network(
            self.scheduler,
            bandwidth=schedule.bandwidth,
            latency_s=schedule.latency_s,
            capacity=schedule.capacity,
            short=schedule.short,
        )
        self.oracle = Oracle(alike=schedule.alike)
        self.memories: dict[str, SharedMemory] = {}
        self.relays: dict[int, Relay] = {}
        self.publishers: list[Process] = []
        self.readers: list[Process] = []
        self.stop_publishers, self.stop_relays = Signal(self.scheduler), Signal(self.scheduler)
        self.ready, self.published_all = Signal(self.scheduler), Signal(self.scheduler)
        self.master = ""
        self.orders: list[Mailbox] = []  # of each publisher: the masters to go to
        self.repairs = Mailbox(self.scheduler)
        self.newest: tuple[int, int] | None = None  # publisher and version
        self.staging: list[StagingBuffer] = []  # real memory, that a killed publisher does not give back
        self.versions_read = 0
        self.faults: list[str] = []
        self.faults_to_come = 0

    # Processes

    def machine(self, process: Process) -> SimulatedMachine:
        """The machine of a process."""
        memory = self.memories.setdefault(process.host, SharedMemory())
        return SimulatedMachine(self.scheduler, self.network, memory, process)

    def start(self, name: str, host: str, skew_s: float, main: Callable[[Process], None]) -> Process:
        """A new process that runs `main`."""
        process = self.scheduler.process(name, host, clock_offset_s=skew_s)
        self.scheduler.spawn(lambda: main(process), "main", process)
        return process

    def kill(self, process: Process, how: str = "end") -> None:
        """Kill it as SIGKILL does; "silent": its host's network goes with it."""
        if process.dead:
            return
        self.scheduler.note(f"killed, {how}", process)
        self.scheduler.kill(process)
        if how == "silent":
            self.network.unreachable.add(process.host)
        self.network.end_connections(process, silent=how == "silent")

    def living(self) -> list[Relay]:
        """Relays that serve."""
        return [relay for relay in self.relays.values() if relay.serving]

    def want_repair(self) -> None:
        """The repair looks again, once the fault is noticed."""
        self.scheduler.at(self.scheduler.now + self.schedule.detect_s, lambda: self.repairs.put("repair"))

    # What may happen

    def disturb(self, what: str) -> None:
        """A fault happens: from now on connections may fail."""
        self.scheduler.note(f"FAULT: {what}", self.scheduler.processes[0])
        self.faults.append(what)

    @property
    def disturbed(self) -> bool:
        """Whether any fault has happened."""
        return bool(self.faults)

    @property
    def damaged(self) -> bool:
        """Whether a byte was damaged on a link."""
        return any(link.damaged for link in self.network.links())

    def allowed(self, error: ParamServerError, *, pulling: bool = True) -> bool:
        """Whether this error may happen now."""
        if isinstance(error, _ALWAYS):
            return True
        if isinstance(error, LeaseExpired):
            return self.disturbed
        if isinstance(error, _WHEN_DISTURBED):
            return self.disturbed
        return self.damaged and (isinstance(error, ProtocolError) or (isinstance(error, ChunkDamaged) and pulling))

    def judge(self, who: str, error: ParamServerError, *, pulling: bool = True) -> None:
        """Note an error, as wrong if it may not happen."""
        text = f"{who}: {type(error).__name__}: {error}"
        if self.allowed(error, pulling=pulling):
            self.scheduler.note(text)
        else:
            self.scheduler.fail(f"an error that nothing explains: {text}")
