"""A thread that carries commands out in order, and the events that come of it: what several roles have in common.

    submit(commands) ──► what waits ──► thread: carry_out(command) ──► put(event) ──► events(timeout_s)

An exception in the thread ends it; `events` raises it once what came before has been taken. Then nothing more is carried out.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence

from tailrace.contracts import Command, Event


class Worker:
    """Carries commands out. It begins at once.

    Args:
        name: of the thread.
        carry_out: called with each command, in the thread.
    """

    def __init__(self, name: str, carry_out: Callable[[Command], None]) -> None:
        self._carry_out = carry_out
        self._changed = threading.Condition()
        self._commands: deque[Command] = deque()
        self._events: list[Event] = []
        self._error: BaseException | None = None
        self._closing = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> bool:
        """Whether a command waits for its turn."""
        with self._changed:
            return bool(self._commands)

    @property
    def closing(self) -> bool:
        """Whether it was closed: what is being carried out counts for nobody any more."""
        return self._closing

    def submit(self, commands: Sequence[Command]) -> None:
        """Take commands. Returns at once, from any thread."""
        with self._changed:
            self._commands.extend(commands)
            self._changed.notify_all()

    def put(self, *events: Event) -> None:
        """Something happened. From any thread."""
        with self._changed:
            self._events.extend(events)
            self._changed.notify_all()

    def fail(self, error: BaseException) -> None:
        """The role is broken; the first cause counts. From any thread."""
        with self._changed:
            self._error = self._error or error
            self._changed.notify_all()

    def events(self, timeout_s: float) -> list[Event]:
        """What happened since the last call; waits up to `timeout_s` seconds for something.

        Raises:
            BaseException: what broke the role, after all events from before it.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._events or self._error is not None, timeout_s)
            found, self._events = self._events, []
            if not found and self._error is not None:
                raise self._error
            return found

    def forget(self) -> None:
        """Commands that wait and events that nobody took are void: another controller takes over."""
        with self._changed:
            self._commands.clear()
            self._events.clear()

    def close(self, timeout_s: float) -> bool:
        """Carry out nothing more. Returns whether what was under way came to its end within `timeout_s` seconds."""
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
            # Not swallowed: `events` raises it.
            self.fail(error)

    def _next(self) -> Command | None:
        with self._changed:
            self._changed.wait_for(lambda: self._commands or self._closing or self._error is not None)
            return None if self._closing or self._error is not None else self._commands.popleft()
