"""Imports reasoning-gym, an optional package whose import takes seconds."""

from __future__ import annotations

import warnings
from typing import Any

from tailrace.contracts import extra


def import_reasoning_gym() -> Any:
    """Import and return the package reasoning_gym.

    Raises:
        MissingExtraError: the package is not installed.
    """
    with extra("tailrace-reward", "reasoning-gym"), warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)  # one of its dependencies compares strings with `is`
        import reasoning_gym
    return reasoning_gym
