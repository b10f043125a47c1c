"""What stands in front of every role in its own process: the member's side of its conversation with controllers.

    submit(commands)                 each command once
    events(timeout_s, told, logged)  the events after number `told`; those up to `logged` are forgotten
    ready(...), close()              done once; a second call gets the first one's answer
    anything else                    the role's own method

`Correspondence` has the rules; this is what threads and calls that wait add to them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from tailrace.contracts import Command, Event
from tailrace.faulttol import FaultKind, InjectedError
from tailrace.runtime.executor.doors import HasStops, Ready, Role, StrikesItself, checked
from tailrace.runtime.executor.epochs import Correspondence


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

    def quiet_s(self) -> float:
        """Seconds since anybody called last; 0 while another member, or who asks for results, waits for an answer."""
        with self._changing:
            return 0.0 if self._serving else time.monotonic() - self._called_s

    def _serve(self, method: str, arguments: Sequence[Any]) -> Any:
        with self._changing:
            self._serving += 1
        try:
            return getattr(self.role, method)(*arguments)
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
