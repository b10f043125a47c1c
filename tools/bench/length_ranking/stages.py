"""A budget of seconds that stages share, lines of progress, and files that are whole or not there."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

_SAY_S = 10.0


class OutOfTimeError(Exception):
    """The budget is used up. What is finished is on disk, and the next call goes on from there."""


class Clock:
    """What is left of a budget, and who says what is being done.

    Args:
        budget_s: seconds from now on.
    """

    def __init__(self, budget_s: float) -> None:
        self._began = time.monotonic()
        self._end = self._began + budget_s
        self._said: dict[str, float] = {}

    @property
    def left_s(self) -> float:
        """Seconds that are left, at least 0."""
        return max(0.0, self._end - time.monotonic())

    @property
    def over(self) -> bool:
        """Whether none are."""
        return self.left_s <= 0

    def check(self, needed_s: float = 0.0) -> None:
        """Go on only if so many seconds are left.

        Raises:
            OutOfTimeError: they are not.
        """
        if self.left_s <= needed_s:
            raise OutOfTimeError

    def say(self, stage: str, text: str, *, last: bool = False) -> None:
        """Print what a stage does, at most every ten seconds, and in any case if it is the last that it says."""
        now = time.monotonic()
        if last or now - self._said.get(stage, -_SAY_S) >= _SAY_S:
            self._said[stage] = now
            print(f"{now - self._began:6.0f} s  {stage}: {text}", file=sys.stderr, flush=True)


def write_whole(path: Path, value: Any) -> None:
    """Write JSON so that the file is there as a whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    partial.write_text(json.dumps(value, separators=(",", ":")) + "\n")
    partial.replace(path)
