"""Imports reasoning-gym, an optional package whose import takes seconds."""

from __future__ import annotations

import warnings
from typing import Any

from tailrace.reward.errors import MissingExtraError


def import_reasoning_gym() -> Any:
    """Import and return the package reasoning_gym.

    Raises:
        MissingExtraError: the package is not installed.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)  # one of its dependencies compares strings with `is`
            import reasoning_gym
    except ImportError as error:
        raise MissingExtraError("this needs reasoning-gym: pip install 'tailrace-reward[reasoning-gym]'") from error
    return reasoning_gym
