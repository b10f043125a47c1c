"""Builds a loss or advantages from options by name, with errors of one line."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from tailrace.contracts import expected_one_of
from tailrace.trainer.errors import TrainerConfigError


def build(factory: Callable[..., Any], options: Mapping[str, Any], what: str) -> Any:
    """What a plugin's class or function builds from its options.

    Args:
        factory: the class or function.
        options: by name.
        what: the plugin, for the message.

    Raises:
        TrainerConfigError: an option is unknown, missing, or has a value that the class refuses.
    """
    known = list(inspect.signature(factory).parameters)
    for name in options:
        if name not in known:
            raise TrainerConfigError(f"{what}: found the unknown option {name!r}, {expected_one_of(name, known)}")
    try:
        return factory(**options)
    except (TypeError, ValueError) as error:
        raise TrainerConfigError(f"{what}: {error}") from error


def require(name: str, value: Any, low: float, high: float = float("inf"), *, open_end: bool = False) -> None:
    """Check that an option is a number from `low` to `high`, or below `high` with `open_end`.

    Raises:
        TrainerConfigError: it is not.
    """
    number = not isinstance(value, bool) and isinstance(value, int | float)
    if not (number and low <= value and (value < high if open_end else value <= high)):
        above = "" if high == float("inf") and not open_end else f"{'below' if open_end else 'to'} {high:g}"
        expected = (
            f"a finite number from {low:g}" if open_end and high == float("inf") else f"a number from {low:g} {above}"
        )
        raise TrainerConfigError(f"found {name} = {value!r}, expected {expected.strip()}")
