"""Whole numbers that come from outside."""

from __future__ import annotations

from tailrace.staleness.errors import LimitError


def whole(name: str, value: int, *, least: int = 0) -> int:
    """The value itself.

    Raises:
        LimitError: it is not a whole number of at least `least`.
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise LimitError(f"found {name}={value!r}, expected a whole number of at least {least}")
    return value
