"""A thread that carries commands out one by one, and a queue of events; several roles use it.

    submit(commands) ──► what waits ──► thread: carry_out(command) ──► put(event) ──► events(timeout_s)

An exception in the thread ends the thread; `events` raises it once all earlier events have been taken.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence

from tailrace.contracts import Command, Event


class EventQueue:
    """Events, and the error that broke the role, which is raised once all earlier events have been taken."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._events: list[Event] = []
        self._error: BaseException | None = None

    def put(self, *events: Event) -> None:
        """Add events. Any thread may call it."""
        with self._changed:
            self._events.extend(events)
            self._changed.notify_all()

    def fail(self, error: BaseException) -> None:
        """Record the error that broke the role; only the first is kept. Any thread may call it."""
        with self._changed:
            self._error = self._error or error
            self._changed.notify_all()

    def events(self, timeout_s: float) -> list[Event]:
        """Events since the last call; waits up to `timeout_s` seconds for the first.

        Raises:
            BaseException: the error that broke the role, once all earlier events have been taken.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._events or self._error is not None, timeout_s)
            found, self._events = self._events, []
            if not found and self._error is not None:
                raise self._error
            return found

    def forget(self) -> None:
        """Drop events that were not taken, since another controller takes over."""
        with self._changed:
            self._events.clear()


class RoleWorker(EventQueue):
    """Carries commands out in a thread, which starts at once.

    Args:
        name: the thread's name.
        carry_out: called with each command, in the thread.
        newest_first: of those that wait the last one comes first; else they come in order.
    """

    def __init__(self, name: str, carry_out: Callable[[Command], None], *, newest_first: bool = False) -> None:
        super().__init__()
        self._carry_out, self._newest_first = carry_out, newest_first
        self._commands: deque[Command] = deque()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> bool:
        """Whether a command is waiting."""
        with self._changed:
            return bool(self._commands)

    @property
    def closing(self) -> bool:
        """Whether it was closed, so that the result of the current command is not needed."""
        return self._closing

    def submit(self, commands: Sequence[Command]) -> None:
        """Queue commands. Returns at once; any thread may call it."""
        with self._changed:
            self._commands.extend(commands)
            self._changed.notify_all()

    def take_out(self, which: Callable[[Command], bool]) -> list[Command]:
        """Take commands out of those that wait, in the order in which they came: they are not carried out."""
        with self._changed:
            found = [command for command in self._commands if which(command)]
            if found:
                self._commands = deque(command for command in self._commands if not which(command))
            return found

    def forget(self) -> None:
        """Drop waiting commands and events that were not taken, since another controller takes over."""
        with self._changed:
            self._commands.clear()
        super().forget()

    def close(self, timeout_s: float) -> bool:
        """Carry out no further command. Returns whether the current one ended within `timeout_s` seconds."""
        with self._changed:
            self._closing = True
            self._commands.clear()
            self._changed.notify_all()
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            while (command := self._next()) is not None:
                self._carry_out(command)
        except BaseException as error:
            # Not swallowed: `events` raises this error.
            self.fail(error)

    def _next(self) -> Command | None:
        with self._changed:
            self._changed.wait_for(lambda: self._commands or self._closing or self._error is not None)
            if self._closing or self._error is not None:
                return None
            return self._commands.pop() if self._newest_first else self._commands.popleft()
