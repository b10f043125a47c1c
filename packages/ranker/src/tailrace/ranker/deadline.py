"""A budget of seconds, as what is left of it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from tailrace.ranker.errors import RankerOptionError


class Deadline:
    """When training must have ended.

    Args:
        budget_s: seconds from now on.
        clock: returns seconds.

    Raises:
        RankerOptionError: the budget is not above 0.
    """

    def __init__(self, budget_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        if math.isnan(budget_s) or budget_s <= 0:
            raise RankerOptionError(f"found budget_s = {budget_s!r}, expected seconds above 0")
        self._clock = clock
        self._end = clock() + budget_s

    @property
    def left_s(self) -> float:
        """Seconds that are left; below 0 when it has passed."""
        return self._end - self._clock()

    def allows(self, seconds: float) -> bool:
        """Whether something that takes so long ends in time."""
        return seconds < self.left_s

    def now(self) -> float:
        """The clock, in seconds."""
        return self._clock()

    def part(self, share: float) -> Deadline:
        """A deadline after this share of what is left."""
        return Deadline(max(self.left_s * share, 1e-9), self._clock)
