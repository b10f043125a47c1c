"""What stands in front of every role in its own process: the member's side of its conversation with controllers.

    submit(commands)               each command once, by its number; one that comes twice is taken, and its answer told again
    events(timeout_s, told, logged)  the events after number `told`; those up to `logged` are forgotten
    ready(...), close()            done once; a second call gets the first one's answer
    anything else                  the role's own method

A controller may die with answers that it has not logged. So events are numbered from 1 and kept until they are acknowledged:
the next controller gets them again. Each controller has an epoch, greater than all before it. Once a member has heard of an
epoch, it refuses calls with a smaller one: a controller that was stopped and wakes up after it was replaced changes nothing.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from tailrace.contracts import Command, Event
from tailrace.pipeline.errors import StaleEpochError


class Mailbox:
    """A role, and what was said to controllers and by them.

    Args:
        role: the role.
    """

    def __init__(self, role: Any) -> None:
        self.role = role
        self._called_s, self._serving = time.monotonic(), 0
        self._epoch = 0
        self._taken = 0  # number of the newest command
        self._kept: list[Event] = []
        self._forgotten = 0  # events that were acknowledged, so the number of the last one
        self._once: dict[str, Future[Any]] = {}
        self._changing = threading.Lock()
        self._submitting = (
            threading.Lock()
        )  # an old controller's commands come wholly before a new one's, or not at all
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
            if epoch < self._epoch:
                raise StaleEpochError(
                    f"found a call of controller {epoch}, expected one of {self._epoch}, which replaced it"
                )
            self._epoch, self._called_s = epoch, time.monotonic()

    def _submit(self, epoch: int, commands: Sequence[Command]) -> None:
        with self._submitting:
            self._claim(epoch)
            fresh = [command for command in commands if command.seq > self._taken]
            if fresh:
                self.role.submit(fresh)
                self._taken = fresh[-1].seq

    def _events(self, epoch: int, timeout_s: float, told: int, logged: int) -> tuple[int, list[Event]]:
        """Events after number `told`, and the number of the last one; waits up to `timeout_s` seconds for the first."""
        with self._polling:
            self._claim(epoch)
            self._forget(logged)
            again = self._after(told)
            if again:
                return self._number, again
            found = self.role.events(timeout_s)
            self._kept.extend(found)
            self._claim(epoch)  # what came for one that was replaced meanwhile is kept for the other
            return self._number, self._after(told)

    @property
    def _number(self) -> int:
        return self._forgotten + len(self._kept)

    def _after(self, told: int) -> list[Event]:
        return self._kept[max(0, told - self._forgotten) :]

    def _forget(self, logged: int) -> None:
        if logged > self._forgotten:
            del self._kept[: logged - self._forgotten]
            self._forgotten = logged

    def _ready(self, epoch: int, *arguments: Any) -> Any:
        del epoch
        fields = self._first("ready", arguments)
        return dict(fields) if isinstance(fields, Mapping) else fields

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
            self._taken = 0
        return found
