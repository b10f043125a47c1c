"""Adaptive timeouts for programs (RollPacker, section 4.3). Pure: the run's controller and the simulator use them too."""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass

from tailrace.reward.errors import SettingsError


@dataclass(frozen=True, slots=True)
class AdaptiveTimeout:
    """The timeout of one test case: min(max(T_min, factor x anchor), T_max), in CPU seconds.

    The anchor of a prompt is the slowest test of a right response so far. Most right programs are much faster than T_max, so
    a program that never ends is given up early.

    Args:
        t_min_s: least timeout in seconds.
        t_max_s: largest timeout in seconds, and the timeout without an anchor. With `t_min_s` = `t_max_s` it is fixed.
        factor: how much slower than the slowest right response another may be.

    Raises:
        SettingsError: a number is out of its range.
    """

    t_min_s: float = 2.0
    t_max_s: float = 30.0
    factor: float = 1.5

    def __post_init__(self) -> None:
        if not all(0 < value < math.inf for value in (self.t_min_s, self.t_max_s, self.factor)):
            raise SettingsError(
                f"found t_min_s = {self.t_min_s:g}, t_max_s = {self.t_max_s:g} and factor = {self.factor:g}, "
                "expected finite numbers above 0"
            )
        if self.t_min_s > self.t_max_s:
            raise SettingsError(
                f"found t_min_s = {self.t_min_s:g} above t_max_s = {self.t_max_s:g}, expected at most that"
            )

    def timeout_s(self, anchor_s: float | None) -> float:
        """The timeout for an anchor in CPU seconds; None: no right response is known."""
        if anchor_s is None:
            return self.t_max_s
        return min(max(self.t_min_s, self.factor * anchor_s), self.t_max_s)


class Anchors:
    """The anchor of each prompt: the slowest test of a right response so far, in CPU seconds. It only grows."""

    def __init__(self) -> None:
        self._seconds: dict[Hashable, float] = {}

    def right(self, prompt: Hashable, anchor_s: float) -> None:
        """Note a right response's slowest test."""
        self._seconds[prompt] = max(anchor_s, self._seconds.get(prompt, 0.0))

    def get(self, prompt: Hashable, reference_s: float | None = None) -> float | None:
        """The anchor of a prompt; without a right response, the reference solution's time, which may be unknown."""
        return self._seconds.get(prompt, reference_s)
