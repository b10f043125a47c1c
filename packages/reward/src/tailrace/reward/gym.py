"""The one place that imports reasoning-gym, an optional and slow import (seconds)."""

from __future__ import annotations

import warnings
from typing import Any

from tailrace.reward.errors import MissingExtraError


def import_reasoning_gym() -> Any:
    """The package reasoning_gym.

    Raises:
        MissingExtraError: it is not installed.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)  # one of its dependencies compares strings with `is`
            import reasoning_gym
    except ImportError as error:
        raise MissingExtraError("this needs reasoning-gym: install tailrace-reward[reasoning-gym]") from error
    return reasoning_gym
