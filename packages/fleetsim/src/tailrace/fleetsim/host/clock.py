"""Virtual time: a heap of what happens when, and the clock that the executor runs by.

    heap of (time, what happens) ──► members ──► answers of one instant ──► executor

Nothing is random here. What happens at one time happens in the order in which it was asked for.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

Happens = Callable[[Any], None]


class VirtualTime:
    """The clock of a virtual host.

    `settle` is called at the end of every instant, before the executor hears of it; `pulse` at multiples of `pulse_s`.

    Args:
        pulse_s: seconds between two pulses: members report their load then.
    """

    def __init__(self, pulse_s: float) -> None:
        self.pulse: Callable[[], None] = lambda: None
        self.settle: Callable[[], None] = lambda: None
        self._pulse_s, self._next_pulse_s = pulse_s, pulse_s
        self._now = 0.0
        self._heap: list[tuple[float, int, Happens, Any]] = []
        self._order = 0
        self._timers: deque[tuple[float, Happens, Any]] = deque()
        self._arrived: list[int] = []

    def now(self) -> float:
        """Seconds on the run's clock."""
        return self._now

    def at(self, when: float, happens: Happens, argument: Any) -> None:
        """Something happens at a time, not before now."""
        self._order += 1
        heapq.heappush(self._heap, (when, self._order, happens, argument))

    def later(self, when: float, happens: Happens, argument: Any) -> None:
        """The same for what is asked for in the order of its times, and is no sign that anything is under way."""
        self._timers.append((when, happens, argument))

    @property
    def idle(self) -> bool:
        """Whether nothing is under way."""
        return not self._heap

    def clear(self) -> None:
        """Nothing that was asked for happens any more."""
        self._heap.clear()
        self._timers.clear()
        self._arrived.clear()

    def wake(self, number: int) -> None:
        """The answer with this number is there."""
        self._arrived.append(number)

    def wait(self, until_s: float) -> Sequence[int]:
        """Let time pass to the next instant at which an answer comes, or to `until_s`."""
        heap, timers, pop = self._heap, self._timers, heapq.heappop
        while True:
            self.settle()
            if self._arrived:
                arrived, self._arrived = self._arrived, []
                return arrived
            when = min(heap[0][0] if heap else math.inf, self._next_pulse_s)
            if timers and timers[0][0] < when:
                when = timers[0][0]
            if when > until_s:
                self._now = max(self._now, until_s)
                return ()
            now = self._now = max(self._now, when)
            while heap and heap[0][0] <= now:
                _, _, happens, argument = pop(heap)
                happens(argument)
            if now >= self._next_pulse_s:
                self._next_pulse_s = now + self._pulse_s
                self.pulse()
            while timers and timers[0][0] <= now:
                _, happens, argument = timers.popleft()
                happens(argument)
