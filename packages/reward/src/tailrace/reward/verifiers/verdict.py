"""What a verifier may return: a number, true or false, or an object with a reward and whether the answer is right."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NotRequired, TypedDict

from tailrace.reward.errors import VerdictError

_KEYS = ("reward", "correct")


class Verdict(TypedDict):
    """A reward, and whether the answer is right. A dictionary with these keys is one.

    Without `correct`, or with None, nothing is said of that: a reward of 1 then counts as right and one of 0 as wrong, and
    of rewards between or beyond no accuracy is known.
    """

    reward: float
    correct: NotRequired[bool | None]


def read_verdict(found: Any) -> tuple[float, bool | None]:
    """The reward that a verifier returned, and whether it says that the answer is right (None if it does not say).

    Raises:
        VerdictError: it returned something else; a reward is a finite number.
    """
    if isinstance(found, bool):
        return float(found), found
    correct = None
    if isinstance(found, Mapping):
        unknown = [key for key in found if key not in _KEYS]
        if unknown or "reward" not in found:
            keys = ", ".join(map(repr, found)) or "none"
            raise VerdictError(f"found an object with the keys {keys}, expected 'reward' and, if it likes, 'correct'")
        found, correct = found["reward"], found.get("correct")
        if not isinstance(correct, bool | None):
            raise VerdictError(f"found 'correct' = {correct!r:.60}, expected true, false or None")
    try:
        reward = float(found)
    except (TypeError, ValueError):
        raise VerdictError(
            f"found {found!r:.60}, expected a number, true or false, or an object with 'reward' and 'correct'"
        ) from None
    if not math.isfinite(reward):
        raise VerdictError(f"found the reward {reward}, expected a finite number")
    return reward, correct
