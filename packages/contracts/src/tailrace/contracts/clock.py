"""Time, injected: real in the executors, virtual in the simulator, scripted in tests."""

from __future__ import annotations

from typing import Protocol


class Clock(Protocol):
    """A monotonic clock."""

    def now(self) -> float:
        """Seconds since an arbitrary start."""
        ...
