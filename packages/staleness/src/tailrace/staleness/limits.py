"""Checks of whole numbers that callers pass in."""

from __future__ import annotations

from tailrace.staleness.errors import LimitError


def whole(name: str, value: int, *, least: int = 0) -> int:
    """Check a value and return it.

    Args:
        name: the value's name, for the error message.
        value: the value.
        least: smallest allowed value.

    Raises:
        LimitError: the value is not a whole number of at least `least`.
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise LimitError(f"found {name}={value!r}, expected a whole number of at least {least}")
    return value
