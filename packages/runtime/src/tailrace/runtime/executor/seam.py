"""The protocols between the executor and its hosts: starting members, calling them, and the clock.

Every role has the same five methods, on every host (`doors` has them and each role's own as protocols):

    ready(...)         returns once the role serves, with what its `Up` event says of it
    submit(commands)   takes commands, in order, and returns at once
    events(timeout_s)  returns the events since the last call, and waits for the first; each answer is a heartbeat
    adopt(...)         prepares for another controller, which numbers its commands anew
    close()            cleans up

Before them stands a `Mailbox`, so that a controller may die and another go on: it takes each command once, and the executor's
question for events is ``events(timeout_s, told, logged)``: events are numbered from 1 and kept until they are in the log. Its
answer is the number of the last event, and the events after `told`. Every call carries the epoch of its controller.
For scripted faults a role may have three more: `stop_at(phase, timeout_s)` returns whether it has stopped in that phase,
`stops` is what it stops with, and `strike(kind)` carries out what happens inside it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol, TypeVar, runtime_checkable

from tailrace.contracts import Cause, Place, ProcessSeat
from tailrace.faulttol import FaultKind
from tailrace.runtime.errors import RoleError


class MemberDeadError(RoleError):
    """A member is gone: its process died or was killed."""


class MachineDeadError(MemberDeadError):
    """A member is gone with its machine."""

    cause = Cause.MACHINE


class Answer(Protocol):
    """The future result of a call. A `concurrent.futures.Future` is one."""

    def add_done_callback(self, call: Callable[[Any], None], /) -> None:
        """Call a function once the result is there; at once if it already is."""
        ...

    def cancelled(self) -> bool:
        """Whether the result will never come, since the member was killed before it began the call."""
        ...

    def exception(self) -> BaseException | None:
        """The error that the call ended with; None if it succeeded."""
        ...

    def result(self) -> Any:
        """The result. Raises the error that the call ended with."""
        ...


class Caller(Protocol):
    """Calls a member from another member, by name, so that a restarted one is found again. It can be pickled."""

    def call(self, method: str, *arguments: Any, timeout_s: float = 60.0) -> Any:
        """Call a method and wait for its result. If the member is gone, its successor is looked for until `timeout_s`.

        Raises:
            MemberDeadError: the member is gone, and no successor came within `timeout_s`.
            DeadlineError: the call was not answered within `timeout_s`.
        """
        ...


class Member(Protocol):
    """A handle of one running member."""

    @property
    def pid(self) -> int | None:
        """The member's process; None before it is ready."""
        ...

    @property
    def machine(self) -> str:
        """The machine that it runs on, empty before it is ready unless its place named one."""
        ...

    @property
    def seat(self) -> ProcessSeat:
        """The machine that it runs on and its devices there, once it is ready; none where the host gives members none."""
        ...

    def call(self, method: str, *arguments: Any) -> Answer:
        """Call a method of the role.

        If the member is gone, the answer's error is a `MemberDeadError`; if a later controller has claimed it, a
        `StaleEpochError`.
        """
        ...

    def strike(self, kind: FaultKind) -> None:
        """Inject a fault."""
        ...

    def kill(self) -> None:
        """End the member now, without cleaning up."""
        ...

    def close(self, timeout_s: float) -> None:
        """Let the member clean up, then end it."""
        ...


@dataclass(frozen=True, slots=True)
class MemberStart:
    """What the executor says to a member as it starts, beside the settings of its role.

    Args:
        id: its id; that of the trainer for each of its ranks.
        incarnation: counts the starts of this id, from 1.
        token: shared secret of the run's peers.
        name: a name that is unique on the machine.
        store: a caller of the data role; None for the data role itself and for relays.
        data_s: deadline of each call of the data role, in which one that is gone may come back.
        tp: devices that a replica's engine spans; None: as its settings say.
        rank, world_size: the process group of the trainer.
        rendezvous: a directory in which its ranks meet; None if there is one.
        cells: cells that the trainer's ranks form, each of as many that follow each other.
        holders: callers of relays whose machines hold checkpoints too.
        followers: callers of the trainer's other ranks, for the first.
    """

    id: str = "0"
    incarnation: int = 1
    token: str = ""
    name: str = ""
    store: Caller | None = None
    data_s: float = 180.0
    tp: int | None = None
    rank: int = 0
    world_size: int = 1
    rendezvous: Path | None = None
    cells: int = 1
    holders: Sequence[Caller] = ()
    followers: Sequence[Caller] = ()

    @property
    def data(self) -> Caller:
        """The caller of the data role.

        Raises:
            RoleError: it was given none.
        """
        if self.store is None:
            raise RoleError(f"member {self.id!r} got no caller of the data role, expected one")
        return self.store


@dataclass(frozen=True, slots=True)
class Bundle:
    """A part of a group whose members are placed together, where a host has several machines.

    Args:
        group: its name.
        index: the part.
        parts: GPUs of each part, for all members that stand there.
        strategy: pack (on as few machines as it takes), spread (on as many as there are), strict-pack (on one) or
            strict-spread (each on its own).
    """

    group: str
    index: int
    parts: tuple[float, ...]
    strategy: str = "pack"


Settings = TypeVar("Settings")


@dataclass(frozen=True, slots=True)
class RoleSpec:
    """How to start a role: by ``factory(**arguments)`` on a machine.

    Args:
        factory: creates the role object.
        arguments: the factory's arguments. Those of a member are `settings`, its role's, and `start`, a `MemberStart`.
        cpus: number of CPU cores, for scheduling only.
        gpus: number of devices, or the share of one.
        cores: whether its devices are cores of a CPU, to which its process is pinned.
        environment: environment variables of the role's process.
        nice: niceness of the role's process, 0 to 19.
        device: kind of its GPUs; empty for any.
        home: whether it stands on the controller's machine, if that has what it needs.
        bundle: the part of a group in which it stands; None: wherever the host likes.
    """

    factory: Callable[..., Any]
    arguments: Mapping[str, Any] = field(default_factory=dict)
    cpus: float = 0.0
    gpus: float = 0.0
    environment: Mapping[str, str] = field(default_factory=dict)
    nice: int = 0
    device: str = ""
    home: bool = False
    bundle: Bundle | None = None
    cores: bool = False

    @classmethod
    def of(
        cls,
        factory: Callable[[Settings, MemberStart], object],
        settings: Settings,
        *,
        gpus: float = 0.0,
        environment: Mapping[str, str] = MappingProxyType({}),
        nice: int = 0,
        home: bool = False,
        cores: bool = False,
    ) -> RoleSpec:
        """How to start the members of a role: each is ``factory(settings, start)``."""
        given = {"settings": settings}
        return cls(factory, given, gpus=gpus, environment=environment, nice=nice, home=home, cores=cores)

    @property
    def settings(self) -> Any:
        """The settings of the role."""
        return self.arguments["settings"]

    def having(self, settings: object) -> RoleSpec:
        """The same with other settings."""
        return replace(self, arguments={**self.arguments, "settings": settings})


class HostTime(Protocol):
    """The clock of a host, and the queue of answers that wakes the executor.

    `now` shows seconds on the run's clock.
    """

    def now(self) -> float:
        """Seconds on the run's clock, never decreasing."""
        ...

    def wake(self, number: int) -> None:
        """Note that the answer with this number is there. Any thread may call it."""
        ...

    def wait(self, until_s: float) -> Sequence[int]:
        """Wait for answers. Returns the numbers of all answers of one instant; empty at `until_s`."""
        ...


class Host(Protocol):
    """Starts members, carries calls, owns the clock.

    `epoch` is that of the controller which it serves: handles that it gives from then on carry it with every call.
    `poll_s` is how long a member may wait for an event before it answers a poll without one, `tick_s` the time between two
    ticks of the executor, both in seconds.
    """

    poll_s: float
    tick_s: float
    epoch: int

    @property
    def time(self) -> HostTime:
        """The clock."""
        ...

    def spawn(self, role: str, id_: str, incarnation: int, spec: RoleSpec, place: Place) -> Member:
        """Start a member. Returns at once; the first call of the member waits for the start."""
        ...

    def find(self, role: str, id_: str, incarnation: int, spec: RoleSpec | None = None) -> Member | None:
        """A handle of a member that another controller has started; None if it does not live.

        Args:
            spec: what the member is, if it may not have been told: its controller may have died as it started it. A member
                takes it once.
        """
        ...

    def caller(self, role: str, id_: str = "0") -> Caller:
        """A caller of a member, for other members and for the driver."""
        ...

    def strike_machine(self, name: str | None) -> str | None:
        """Kill a machine with all that runs there.

        Args:
            name: the machine; None for any.

        Returns:
            The machine; None if none was struck, since it is gone already, is the last one, or the host has no such machines.
        """
        ...

    def strike_driver(self, kind: FaultKind) -> None:
        """Inject a fault into the process of the executor itself."""
        ...

    def close(self) -> None:
        """End all members that still run."""
        ...


@runtime_checkable
class KnowsRoom(Protocol):
    """A host of several machines that knows what they have room for."""

    def room(self, machine: str) -> tuple[str, ...] | None:
        """The other machines that have room, together, for all members of the run that stand on a machine.

        Returns:
            Their names, those with most room first; empty if they have none; None if that is not known.
        """
        ...


class _Done:
    """An answer that is there at once, without a result."""

    def add_done_callback(self, call: Callable[[Any], None], /) -> None:
        call(self)

    def cancelled(self) -> bool:
        return False

    def exception(self) -> BaseException | None:
        return None

    def result(self) -> Any:
        return None


DONE: Answer = _Done()
"""The answer on a host where commands arrive at once."""
