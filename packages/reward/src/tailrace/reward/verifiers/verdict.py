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
    found = _plain(found)
    if isinstance(found, bool):
        return float(found), found
    correct = None
    if isinstance(found, Mapping):
        unknown = [key for key in found if key not in _KEYS]
        if unknown or "reward" not in found:
            keys = ", ".join(map(_shown, found)) or "none"
            raise VerdictError(f"found an object with the keys {keys}, expected 'reward' and, if it likes, 'correct'")
        found, correct = _plain(found["reward"]), _plain(found.get("correct"))
        if not isinstance(correct, bool | None):
            raise VerdictError(f"found 'correct' = {_shown(correct)}, expected true, false or None")
    try:
        reward = float(found)
    except (TypeError, ValueError):
        raise VerdictError(
            f"found {_shown(found)}, expected a number, true or false, or an object with 'reward' and 'correct'"
        ) from None
    except OverflowError:
        raise VerdictError("found a reward beyond the largest float, expected a finite number") from None
    if not math.isfinite(reward):
        raise VerdictError(f"found the reward {reward}, expected a finite number")
    return reward, correct


def _plain(found: Any) -> Any:
    """The Python value of a scalar or a single element of numpy, torch or the like; anything else as it is."""
    item = None if isinstance(found, Mapping) else getattr(found, "item", None)
    if not callable(item):
        return found
    try:
        return item()
    except Exception:  # an array of several elements, or another kind of thing with this method
        return found


def _shown(found: Any) -> str:
    try:
        return f"{found!r:.60}"
    except Exception:  # an object may refuse to be shown, as an integer of 5,000 digits does
        return f"an object of the type {type(found).__name__}"
