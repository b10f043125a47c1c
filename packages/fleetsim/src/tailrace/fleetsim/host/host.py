"""The virtual host: members are models, calls take no time but what the messages take, and the clock is virtual."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from tailrace.contracts import Command, Event, Place, ProcessSeat
from tailrace.faulttol import FaultKind
from tailrace.faulttol.injection import LOAD
from tailrace.fleetsim.errors import DriverDiedError
from tailrace.fleetsim.host.clock import VirtualTime
from tailrace.fleetsim.host.phases import Phases
from tailrace.runtime.errors import StaleEpochError
from tailrace.runtime.executor.deployment import REPLICA
from tailrace.runtime.executor.doors import Ready
from tailrace.runtime.executor.seam import DONE, Answer, MachineDeadError, MemberDeadError, MemberStart, RoleSpec
from tailrace.runtime.hosts.mailbox import Correspondence


class VirtualMember:
    """One incarnation of a modelled member. A replica is of a `pool` and spans `tp` devices; None: as its pool says."""

    __slots__ = (
        "_epoch",
        "_host",
        "_poll",
        "_ready",
        "_said",
        "_starting",
        "_stops",
        "_stops_to_load",
        "_told",
        "dead",
        "hung",
        "id",
        "incarnation",
        "machine",
        "model",
        "phases",
        "pool",
        "role",
        "seat",
        "tp",
    )

    pid = None

    def __init__(
        self,
        host: VirtualHost,
        role: str,
        id_: str,
        incarnation: int,
        model: RoleModel,
        machine: str,
        tp: int | None = None,
        pool: str = "",
    ) -> None:
        self._host, self.role, self.id, self.incarnation, self.model = host, role, id_, incarnation, model
        self.machine, self.tp, self.pool = machine, tp, pool
        self.seat = ProcessSeat(machine)
        self.dead = self.hung = False
        self._poll: Pending | None = None
        self._starting: Pending | None = None
        self._told = 0  # number of the last event that whoever asks has
        self._epoch = host.epoch
        self._said = Correspondence(host.epoch)
        self._ready: Pending | None = None
        self._stops: list[Pending] = []
        self._stops_to_load = False
        self.phases = Phases(model, host.time)
        model.begin(self)

    # ---- what the executor calls ----------------------------------------------------------------------------------

    def call(self, method: str, *arguments: Any) -> Answer:
        """Call it for the controller that started it."""
        return self.call_for(self._epoch, method, arguments)

    def call_for(self, epoch: int, method: str, arguments: tuple[Any, ...]) -> Answer:
        """Call it for the controller of an epoch."""
        try:
            self._said.claim(epoch)
        except StaleEpochError as error:
            refused = Pending()
            refused.resolve(None, error)
            return refused
        if method == "events":
            return self._park(*arguments)
        if method == "submit":
            self._submit(arguments[0], epoch)
            return DONE
        if method == "ready" and self._ready is not None:
            return self._ready
        answer = Pending()
        if method == "stop_at":
            self._stop_at(arguments[0], answer)
            return answer
        if method == "ready":
            self._ready = self._starting = answer
            self._stops_to_load, arguments = arguments[1:2] == (True,), (*arguments[:1], *arguments[2:])
            takes_s = self.model.starts_s(self.incarnation)
            self._host.time.at(self._host.time.now() + takes_s, self._serves, arguments)
        else:
            answer.resolve({})
        return answer

    @property
    def lives(self) -> bool:
        """Whether its process does anything."""
        return not (self.dead or self.hung)

    def strike(self, kind: FaultKind) -> None:
        if self.dead:
            return
        if kind is FaultKind.KILL:
            self.end("killed")
        elif kind is FaultKind.HANG:
            self.hung = True
            self.model.hang()
        elif kind is FaultKind.RAISE:
            self.end("an exception in its code")
        else:
            self.model.stall()

    def end(self, why: str) -> None:
        """Its process dies by itself; the executor notices after a while."""
        self._ends(MemberDeadError(f"{self.role} {self.id} is gone: {why}"))

    def end_with_machine(self) -> None:
        """Its machine dies."""
        self._ends(MachineDeadError(f"its machine {self.machine} is gone"))

    def kill(self) -> None:
        """What it said before may still arrive, as the answer to a question that nobody asks any more."""
        self._dies()
        self._starting = None

    def close(self, timeout_s: float) -> None:
        del timeout_s
        self.kill()

    # ---- what the model says --------------------------------------------------------------------------------------

    def say(self, events: Sequence[Event]) -> None:
        """The model reports."""
        if not events or self.dead:
            return
        host = self._host
        if host.transport is None:
            self._hears(events)
        else:
            now = host.time.now()
            host.time.at(host.transport.report(self.role, self.id, now), self._hears, events)
            again = host.transport.repeated(events)
            if again is not None:
                host.time.at(host.transport.report(self.role, self.id, now), self._hears_again, again)

    def _hears_again(self, said: Callable[[], list[Event]]) -> None:
        self._hears(said())

    def _hears(self, events: Sequence[Event]) -> None:
        self._said.say(events)
        self._host.reporting[self] = None

    def report(self) -> None:
        """Answer the question for its events, if one waits."""
        if self._poll is not None and self._told < self._said.number and not self.hung:
            poll, self._poll = self._poll, None
            poll.resolve(self._said.after(self._told))

    # ---- inside ---------------------------------------------------------------------------------------------------

    def _park(self, timeout_s: float, told: int, logged: int) -> Answer:
        poll = self._poll = Pending()
        self._said.acknowledge(logged)
        self._told = told
        if self.dead:
            return poll  # the executor will notice
        if told < self._said.number:
            self._host.reporting[self] = None
        time = self._host.time
        time.later(time.now() + timeout_s, self._expires, poll)
        return poll

    def _expires(self, poll: Pending) -> None:
        if poll is self._poll and not self.hung and not self.dead and not self._host.closed(self):
            self._poll = None
            poll.resolve(self._said.after(self._told))

    def _submit(self, commands: Sequence[Command], epoch: int) -> None:
        host = self._host
        if host.transport is None and not host.command_s(self.role):
            self._takes((commands, epoch))
            return
        now = host.time.now()
        arrivals = (
            [(now, list(commands))]
            if host.transport is None
            else host.transport.commands(self.role, self.id, commands, now)
        )
        for arrival, part in arrivals:
            host.time.at(arrival + host.command_s(self.role), self._takes, (part, epoch))

    def _takes(self, arrived: tuple[Sequence[Command], int]) -> None:
        commands, epoch = arrived
        if not self.lives:
            return
        try:
            self._said.claim(epoch)
        except StaleEpochError:
            return  # whoever sent them is not there to be told
        if self.role != REPLICA:  # the commands to a replica may overtake each other; it takes each once by its chain
            commands = self._said.fresh(commands)
        if commands:
            self.model.submit(commands)
            self.phases.took(commands)

    def _serves(self, arguments: tuple[Any, ...]) -> None:
        if self._starting is None or self.dead:
            return  # its death is noticed in its own time
        if self._stops_to_load:
            if self.phases.waited_for(LOAD):
                self._stops_to_load = False
                self.phases.at(LOAD)
            self._host.time.at(
                self._host.time.now() + self._host.tick_s, self._serves, arguments
            )  # it is struck before
            return
        answer, self._starting = self._starting, None
        if self._host.transport is not None:
            self._host.transport.renewed(self.role, self.id)
        try:
            answer.resolve(self.model.ready(*arguments))
        except Exception as error:
            self._dies()
            answer.resolve(None, error)

    def _stop_at(self, phase: str, answer: Pending) -> None:
        self._stops.append(answer)
        self.phases.wait(phase, lambda: answer.resolve(True))

    def _dies(self) -> None:
        if not self.dead:
            self.dead = True
            self.model.die()
            for answer in self._stops:
                answer.resolve(None, MemberDeadError(f"{self.role} {self.id} is gone"))

    def _ends(self, error: MemberDeadError) -> None:
        self._dies()
        self._host.time.at(self._host.time.now() + self._host.detect_s, self._noticed, error)

    def _noticed(self, error: MemberDeadError) -> None:
        for answer in (self._starting, self._poll):
            if answer is not None:
                answer.resolve(None, error)
        self._starting = self._poll = None


class VirtualHandle:
    """A member as another controller than the one that started it calls it.

    Args:
        member: the member.
        epoch: of this controller.
    """

    __slots__ = ("_epoch", "_member", "machine", "seat")

    pid = None

    def __init__(self, member: VirtualMember, epoch: int) -> None:
        self._member, self._epoch, self.machine = member, epoch, member.machine
        self.seat = member.seat

    def call(self, method: str, *arguments: Any) -> Answer:
        return self._member.call_for(self._epoch, method, arguments)

    @property
    def lives(self) -> bool:
        """Whether its process does anything."""
        return self._member.lives

    def strike(self, kind: FaultKind) -> None:
        self._member.strike(kind)

    def kill(self) -> None:
        self._member.kill()

    def close(self, timeout_s: float) -> None:
        self._member.close(timeout_s)


class VirtualHost:
    """Starts models.

    Args:
        time: the clock.
        poll_s: how long a member keeps the question for its events.
        tick_s: between two ticks of the executor.
        detect_s: seconds until a death is noticed.
        command_s: seconds that a command takes to a member of a role.
        transport: how messages travel; at once if None.
        machine_of: returns a member's machine, where its place does not name one.
        machines: names of the machines that can die.
    """

    def __init__(
        self,
        time: VirtualTime,
        *,
        poll_s: float,
        tick_s: float,
        detect_s: float = 0.0,
        command_s: Callable[[str], float] = lambda _: 0.0,
        transport: MessageTransport | None = None,
        machine_of: Callable[[str, str, int, Place], str] = lambda role, id_, incarnation, place: "",  # noqa: ARG005
        machines: Sequence[str] = (),
    ) -> None:
        self.machines = list(machines)
        self.time, self.poll_s, self.tick_s, self.detect_s = time, poll_s, tick_s, detect_s
        self.command_s, self.transport, self._machine_of = command_s, transport, machine_of
        self.epoch = 1
        self.members: dict[tuple[str, str], VirtualMember] = {}
        self.reporting: dict[VirtualMember, None] = {}
        self.unreachable_until_s: dict[tuple[str, str], float] = {}

    def spawn(self, role: str, id_: str, incarnation: int, spec: RoleSpec, place: Place) -> VirtualMember:
        """Start a model; ``spec.factory(id_)`` is the model of the name, which outlives its incarnations."""
        model = spec.factory(id_)
        machine = self._machine(role, id_, incarnation, place)
        start: MemberStart | None = spec.arguments.get("start")
        tp = None if start is None else start.tp
        member = self.members[role, id_] = VirtualMember(self, role, id_, incarnation, model, machine, tp, place.pool)
        return member

    def caller(self, role: str, id_: str = "0") -> Any:
        """Models call each other directly."""
        del role, id_

    def _machine(self, role: str, id_: str, incarnation: int, place: Place) -> str:
        if not self.machines or not place.machine:
            return self._machine_of(role, id_, incarnation, place)
        others = [name for name in self.machines if name not in place.avoid]
        return place.machine if place.machine in self.machines else (others or self.machines)[0]

    def room(self, machine: str) -> tuple[str, ...]:
        """The other machines that live: a simulated one has room for whatever starts there."""
        return tuple(name for name in self.machines if name != machine)

    def strike_machine(self, name: str | None) -> str | None:
        """End all members of a machine; the last one lives on."""
        struck = next((machine for machine in self.machines if name in (None, machine)), None)
        if struck is None or len(self.machines) < 2:
            return None
        self.machines.remove(struck)
        for member in self.members.values():
            if member.machine == struck and not member.dead:
                member.end_with_machine()
        return struck

    def strike_driver(self, kind: FaultKind) -> None:
        """End the run's driver.

        Raises:
            DriverDiedError: always.
        """
        raise DriverDiedError(f"the driver was struck: {kind}")

    def report(self) -> None:
        """Everything that was said at this instant goes to the executor. Called at the end of it."""
        if self.reporting:
            reporting, self.reporting = self.reporting, {}
            for member in reporting:
                member.report()

    def find(self, role: str, id_: str, incarnation: int, spec: RoleSpec | None = None) -> VirtualHandle | None:
        """A handle of a member that another controller has started; None if it is known to be dead."""
        del spec  # it was told as it was started
        member = self.members.get((role, id_))
        if member is None or member.incarnation != incarnation or member.dead:
            return None
        return VirtualHandle(member, self.epoch)

    def closed(self, member: VirtualMember) -> bool:
        """Whether nothing gets away from a member now."""
        until_s = self.unreachable_until_s.get((member.role, member.id))
        return until_s is not None and self.time.now() < until_s

    def close(self) -> None:
        """Nothing is left."""
        for member in self.members.values():
            member.kill()
        self.members.clear()


class RoleModel:
    """A modelled role. By default it starts at once, has nothing to say of itself, and does nothing any more once it hangs."""

    __slots__ = ("member",)
    member: VirtualMember | None

    def begin(self, member: VirtualMember) -> None:
        """A fresh process of it is starting."""
        self.member = member

    def starts_s(self, incarnation: int) -> float:  # noqa: ARG002
        """Seconds until a fresh process serves."""
        return 0.0

    def ready(self, *_: Any, **__: Any) -> Ready:
        """Start to serve. Raises if it cannot."""
        return Ready()

    def submit(self, commands: Sequence[Command]) -> None:
        """Commands have arrived."""

    def watch_phases(self) -> None:
        """Somebody waits for one of its phases, perhaps one of the work that it does now."""

    def next_finish_s(self) -> float:
        """Seconds of the run's clock at which the first of what it generates ends; infinite if nothing does."""
        return math.inf

    def generates(self) -> bool:
        """Whether its engine runs something."""
        return False

    def die(self) -> None:
        """Its process is gone."""
        self.member = None

    def hang(self) -> None:
        """Its process lives and does nothing any more."""
        self.die()

    def stall(self) -> None:
        """Its process lives and answers, and its engine, if it has one, does nothing any more."""


class MessageTransport(Protocol):
    """The delivery of messages between the executor and members: delayed, reordered, repeated or held back."""

    def commands(
        self, role: str, member: str, commands: Sequence[Command], now: float
    ) -> list[tuple[float, list[Command]]]:
        """Times at which commands sent now arrive, each once or more often."""
        ...

    def report(self, role: str, member: str, now: float) -> float:
        """Time at which a report sent now arrives; reports of one member keep their order."""
        ...

    def repeated(self, events: Sequence[Event]) -> Callable[[], list[Event]] | None:
        """Which of these events arrive a second time, asked when they do; None if none does."""
        ...

    def renewed(self, role: str, member: str) -> None:
        """The member is another process now."""
        ...


class Pending:
    """An answer that comes later."""

    __slots__ = ("_calls", "_error", "_result", "done")

    def __init__(self) -> None:
        self._calls: list[Callable[[Any], None]] = []
        self._result: Any = None
        self._error: BaseException | None = None
        self.done = False

    def add_done_callback(self, call: Callable[[Any], None], /) -> None:
        if self.done:
            call(self)
        else:
            self._calls.append(call)

    def cancelled(self) -> bool:
        """Never."""
        return False

    def exception(self) -> BaseException | None:
        return self._error

    def result(self) -> Any:
        return self._result

    def resolve(self, result: Any, error: BaseException | None = None) -> None:
        """It is there."""
        if not self.done:
            self.done, self._result, self._error = True, result, error
            for call in self._calls:
                call(self)
