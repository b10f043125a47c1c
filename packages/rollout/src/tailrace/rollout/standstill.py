"""Measures how long an engine with work has yielded no token; another thread than the engine's reports it.

    worker thread ── at(phase), moved() ──► Standstill ──► news() ── any thread

Time is not counted while the worker waits for others (`elsewhere`), while the engine has no work (`IDLE`), or while no thread
calls this object, since then the whole process was suspended.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tailrace.contracts import Activity, Clock

GENERATING, PULLING, IDLE = "generating", "pulling", "idle"
_SUSPENDED_S = 1.0


class Standstill:
    """Notices that an engine stands still. Several threads may use it.

    Args:
        replica: name of the replica.
        report_s: seconds until a standstill is reported, and between later reports of it.
        clock: the clock.
    """

    def __init__(self, replica: str, report_s: float, clock: Clock) -> None:
        self._replica, self._report_s, self._clock = replica, report_s, clock
        self._lock = threading.Lock()
        self._phase = IDLE
        self._elsewhere = False
        self._since = self._looked_at = clock.now()
        self._told_at: float | None = None  # None if no standstill was reported, or its end was
        self._slowest_s: dict[str, float] = {}
        self._steps = 0

    @property
    def look_s(self) -> float:
        """Seconds between two calls of `news`, at most."""
        return self._report_s / 4

    @property
    def steps(self) -> int:
        """Engine steps so far that yielded tokens."""
        return self._steps

    def at(self, phase: str) -> None:
        """Set the engine's phase: `GENERATING`, `PULLING` or `IDLE`. Setting the same phase again changes nothing."""
        with self._lock:
            now = self._look()
            if phase != self._phase:
                self._phase, self._since = phase, now

    def moved(self, *, steps: int = 0) -> None:
        """Note that the engine yielded tokens, in a number of steps."""
        with self._lock:
            now = self._look()
            self._slowest_s[self._phase] = max(self._slowest_s.get(self._phase, 0.0), now - self._since)
            self._since = now
            self._steps += steps

    @contextmanager
    def elsewhere(self) -> Iterator[None]:
        """Mark the time in which the worker waits for others, so that the engine cannot step."""
        self._set_elsewhere(True)
        try:
            yield
        finally:
            self._set_elsewhere(False)

    def news(self) -> list[Activity]:
        """A standstill to report, or its end; usually empty."""
        with self._lock:
            now = self._look()
            still_s = 0.0 if self._phase == IDLE else now - self._since
            if still_s >= self._report_s:
                if self._told_at is not None and now - self._told_at < self._report_s:
                    return []
                self._told_at = now
            elif self._told_at is None:
                return []
            else:
                still_s, self._told_at = 0.0, None
            slowest_s = self._slowest_s.get(self._phase, 0.0)
            return [Activity("replica", self._replica, self._phase, self._steps, still_s, slowest_s)]

    def _set_elsewhere(self, elsewhere: bool) -> None:
        with self._lock:
            self._look()
            self._elsewhere = elsewhere

    def _look(self) -> float:
        """The time now. Takes the time since the last call out of the standstill if the engine was not the cause."""
        now = self._clock.now()
        passed_s = now - self._looked_at
        if self._elsewhere or passed_s > self._report_s + _SUSPENDED_S:
            self._since += passed_s
        self._looked_at = now
        return now
