"""The events that a role has for the executor, from any of its threads."""

from __future__ import annotations

import threading

from tailrace.contracts import Event


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
