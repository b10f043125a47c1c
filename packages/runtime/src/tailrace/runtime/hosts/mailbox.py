"""What stands in front of every role in its own process: the member's side of its conversation with controllers.

    submit(commands)                 each command once
    events(timeout_s, told, logged)  the events after number `told`; those up to `logged` are forgotten
    ready(...), close()              done once; a second call gets the first one's answer
    anything else                    the role's own method

`Correspondence` has the rules; this is what threads and calls that wait add to them.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from tailrace.contracts import Command, Event
from tailrace.faulttol import FaultKind, InjectedError
from tailrace.runtime.errors import StaleEpochError
from tailrace.runtime.executor.doors import HasStops, Ready, Role, StrikesItself, checked


class Mailbox:
    """A role, and what was said to controllers and by them.

    Args:
        role: the role.
        took: seconds that the stages of its start took so far. `ready` adds its own as ``load``, and returns all of them.
    """

    def __init__(self, role: Any, took: Mapping[str, float] = MappingProxyType({})) -> None:
        self.role = role
        self._took, self._name = dict(took), type(role).__name__
        self._called_s, self._serving = time.monotonic(), 0
        self._said = Correspondence()
        self._once: dict[str, Future[Any]] = {}
        self._changing = threading.Lock()
        # an old controller's commands come wholly before a new one's, or not at all
        self._submitting = threading.Lock()
        self._polling = threading.Lock()  # two polls must not number events in another order than they came in
        self._own: dict[str, Callable[..., Any]] = {
            "submit": self._submit,
            "events": self._events,
            "ready": self._ready,
            "close": self._close,
            "adopt": self._adopt,
        }

    def call(self, method: str, arguments: Sequence[Any], epoch: int | None = None) -> Any:
        """Call a method.

        Args:
            method: its name.
            arguments: its arguments.
            epoch: of the controller that calls; None: another member calls.

        Raises:
            StaleEpochError: a later controller has called before.
        """
        if epoch is None:
            return self._serve(method, arguments)
        self._claim(epoch)
        own = self._own.get(method)
        return getattr(self.role, method)(*arguments) if own is None else own(epoch, *arguments)

    def quiet_s(self, patience_s: float = math.inf) -> float:
        """Seconds since anybody called last; 0 while another member, or who asks for results, waits for an answer.

        So it is while the role gets ready: it may load for longer than it would wait, and nobody calls it before it is up.

        Args:
            patience_s: seconds after which nobody waits any more for the answer to a call; then it hangs.
        """
        with self._changing:
            quiet_s = time.monotonic() - self._called_s
            return max(0.0, quiet_s - patience_s) if self._serving else quiet_s

    def _serve(self, method: str, arguments: Sequence[Any]) -> Any:
        with self._answering():
            return getattr(self.role, method)(*arguments)

    @contextmanager
    def _answering(self) -> Iterator[None]:
        with self._changing:
            self._serving, self._called_s = self._serving + 1, time.monotonic()
        try:
            yield
        finally:
            with self._changing:
                self._serving, self._called_s = self._serving - 1, time.monotonic()

    def _claim(self, epoch: int) -> None:
        with self._changing:
            self._said.claim(epoch)
            self._called_s = time.monotonic()

    def _submit(self, epoch: int, commands: Sequence[Command]) -> None:
        with self._submitting:
            self._claim(epoch)
            fresh = self._said.fresh(commands)
            if fresh:
                self.role.submit(fresh)

    def _events(self, epoch: int, timeout_s: float, told: int, logged: int) -> tuple[int, list[Event]]:
        """Events after number `told`, and the number of the last one; waits up to `timeout_s` seconds for the first."""
        with self._polling:
            self._claim(epoch)
            self._said.acknowledge(logged)
            if told >= self._said.number:
                self._said.say(checked(self._name, Role.events, self.role.events(timeout_s)))
                self._claim(epoch)  # what came for one that was replaced meanwhile is kept for the other
            return self._said.after(told)

    def _ready(self, epoch: int, *arguments: Any) -> Ready:
        del epoch
        began_s = time.monotonic()
        with self._answering():
            said = checked(self._name, Role.ready, self._first("ready", arguments))
        self._took.setdefault("load", time.monotonic() - began_s)
        return replace(said, took=dict(self._took))

    def _close(self, epoch: int) -> Any:
        del epoch
        return self.close()

    def close(self) -> Any:
        """Close the role, unless that was begun before; then wait for it."""
        return self._first("close", ())

    def _first(self, method: str, arguments: Sequence[Any]) -> Any:
        """Call a method the first time; later calls wait for that one's answer."""
        with self._changing:
            first = method not in self._once
            answer = self._once.setdefault(method, Future())
        if first:
            try:
                answer.set_result(getattr(self.role, method)(*arguments))
            except BaseException as error:
                answer.set_exception(error)  # raised below
        return answer.result()

    def _adopt(self, epoch: int, *arguments: Any) -> Any:
        """Another run's controller takes over, which numbers its commands anew."""
        del epoch
        found = self.role.adopt(*arguments)
        with self._submitting:
            self._said.numbered_anew()
        return found


class InjectedCalls:
    """Calls the methods of one role. Once it was struck by an exception, its next answer is that exception."""

    def __init__(self) -> None:
        self._raises = False

    def call(self, mailbox: Mailbox, method: str, arguments: tuple[Any, ...], epoch: int | None = None) -> Any:
        """See `Mailbox.call`; of ``strike``, whether the role carried the fault out.

        Raises:
            InjectedError: a fault was to raise it, and the role waited in none of its phases.
        """
        if method == "strike":
            return self.strike(mailbox.role, *arguments)
        if method == "events" and self._raises:
            raise InjectedError("a scripted fault raised this")
        return mailbox.call(method, arguments, epoch)

    def strike(self, role: object, kind: FaultKind) -> bool:
        """Strike a role from inside. Returns whether it has been done; a kill or a hang of its process is the host's."""
        stops = role.stops if isinstance(role, HasStops) else None
        if kind is FaultKind.RAISE:
            self._raises = stops is None or not stops.struck(kind)
            return True
        done = isinstance(role, StrikesItself) and role.strike(kind)
        if stops is not None:
            stops.struck(kind)
        return done


# What a member and the controllers that came after each other have said to each other, on every host.
#
# A controller may die with answers that it has not logged. So a member numbers its events from 1 and keeps them until they
# are acknowledged: the next controller gets them again. It takes each command once, by its number. Each controller has an
# epoch, greater than all before it. Once a member has heard of an epoch, it refuses calls with a smaller one: a controller that
# was stopped and wakes up after it was replaced changes nothing.


class Correspondence:
    """The member's side of it. Not safe for threads.

    Args:
        epoch: of the first controller, if it is known.
    """

    __slots__ = ("_epoch", "_forgotten", "_kept", "_taken")

    def __init__(self, epoch: int = 0) -> None:
        self._epoch = epoch
        self._taken = 0  # number of the newest command
        self._kept: list[Event] = []
        self._forgotten = 0  # events that were acknowledged, so the number of the last one

    def claim(self, epoch: int) -> None:
        """A controller calls.

        Raises:
            StaleEpochError: a later one has called before.
        """
        if epoch < self._epoch:
            raise StaleEpochError(
                f"found a call of controller {epoch}, expected one of {self._epoch}, which replaced it"
            )
        self._epoch = epoch

    def fresh(self, commands: Sequence[Command]) -> Sequence[Command]:
        """The commands that have not come before, in the order of their numbers; from now on they have."""
        if commands and commands[0].seq <= self._taken:
            commands = [command for command in commands if command.seq > self._taken]
        if commands:
            self._taken = commands[-1].seq
        return commands

    def numbered_anew(self) -> None:
        """The next controller is another run's, whose commands begin with number 1."""
        self._taken = 0

    def say(self, events: Sequence[Event]) -> None:
        """Events for the controller."""
        self._kept.extend(events)

    @property
    def number(self) -> int:
        """Number of the last event."""
        return self._forgotten + len(self._kept)

    def after(self, told: int) -> tuple[int, list[Event]]:
        """The number of the last event, and the events after number `told`."""
        return self.number, self._kept[max(0, told - self._forgotten) :]

    def acknowledge(self, logged: int) -> None:
        """Forget the events up to number `logged`: the controller's log has them."""
        if logged > self._forgotten:
            del self._kept[: logged - self._forgotten]
            self._forgotten = logged
