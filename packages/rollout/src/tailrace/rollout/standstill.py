"""Since when an engine yields nothing though it has work, told by another thread than the one that may be stuck in it.

    worker thread ── at(phase), moved() ──► Standstill ──► news() ── any thread

What is not the engine's doing is not counted: waiting for others (`elsewhere`), having nothing in the engine (`IDLE`), and time
in which no thread came here, since then the whole process was suspended.
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
        report_s: a standstill is told once it has lasted this long, and then as often.
        clock: what the time is.
    """

    def __init__(self, replica: str, report_s: float, clock: Clock) -> None:
        self._replica, self._report_s, self._clock = replica, report_s, clock
        self._lock = threading.Lock()
        self._phase = IDLE
        self._elsewhere = False
        self._since = self._looked_at = clock.now()
        self._told_at: float | None = None  # None where it was not told, or its end was
        self._slowest_s: dict[str, float] = {}
        self._steps = 0

    @property
    def look_s(self) -> float:
        """How often `news` should be asked for."""
        return self._report_s / 4

    @property
    def steps(self) -> int:
        """Engine steps so far that yielded something."""
        return self._steps

    def at(self, phase: str) -> None:
        """The engine is at this from now on: `GENERATING`, `PULLING` or `IDLE`. If it was already, nothing changes."""
        with self._lock:
            now = self._look()
            if phase != self._phase:
                self._phase, self._since = phase, now

    def moved(self, *, steps: int = 0) -> None:
        """The engine yielded something, in a number of steps."""
        with self._lock:
            now = self._look()
            self._slowest_s[self._phase] = max(self._slowest_s.get(self._phase, 0.0), now - self._since)
            self._since = now
            self._steps += steps

    @contextmanager
    def elsewhere(self) -> Iterator[None]:
        """While the worker waits for somebody else, the engine cannot move."""
        self._set_elsewhere(True)
        try:
            yield
        finally:
            self._set_elsewhere(False)

    def news(self) -> list[Activity]:
        """A standstill that is to be told, or its end; mostly nothing."""
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
        """The time. What passed since the last look and is not the engine's doing is taken out of its standstill."""
        now = self._clock.now()
        passed_s = now - self._looked_at
        if self._elsewhere or passed_s > self._report_s + _SUSPENDED_S:
            self._since += passed_s
        self._looked_at = now
        return now
