"""The clock of hosts in real time, and the queue through which answers wake the executor."""

from __future__ import annotations

import os
import queue
import time
from collections.abc import Sequence

from tailrace.faulttol import FaultKind, strike

_TOGETHER = 1024


class RealTime:
    """The clock and answer queue of a host in real time.

    Args:
        started_s: time now on the run's clock, in seconds; more than 0 if a run is resumed.
    """

    def __init__(self, started_s: float = 0.0) -> None:
        self._zero = time.monotonic() - started_s
        self._arrived: queue.SimpleQueue[int] = queue.SimpleQueue()

    def now(self) -> float:
        """Seconds on the run's clock."""
        return time.monotonic() - self._zero

    def wake(self, number: int) -> None:
        """Note that the answer with this number is there."""
        self._arrived.put(number)

    def wait(self, until_s: float) -> Sequence[int]:
        """Wait for the first answer until `until_s`, and return the numbers of all answers that are there."""
        found: list[int] = []
        try:
            found.append(self._arrived.get(timeout=max(0.0, until_s - self.now())))
            while len(found) < _TOGETHER:
                found.append(self._arrived.get_nowait())
        except queue.Empty:
            pass
        return found


class OwnProcess:
    """What hosts in real time share: the executor is in this process."""

    def strike_machine(self, name: str | None) -> str | None:
        """There are no machines that could be killed."""
        del name
        return None

    def strike_driver(self, kind: FaultKind) -> None:
        """Kill or stop this process, as a kill from outside would."""
        strike(os.getpid(), kind)
