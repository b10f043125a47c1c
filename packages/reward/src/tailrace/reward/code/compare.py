"""Compares what a program gave with what a test expects. Outside of the sandbox, on plain JSON values."""

from __future__ import annotations

import json
import math
from typing import Any

_CLOSE = 1e-9  # relative; programs may add up in another order


def same_value(written: str, expected: Any) -> bool:
    """Whether a value that a program wrote as JSON equals the expected one; floats to 1e-9, true is not 1."""
    try:
        return _same(json.loads(written), expected)
    except (ValueError, RecursionError):
        return False


def same_text(written: str, expected: str) -> bool:
    """Whether two outputs are equal but for white space at the ends of lines and of the whole."""
    return [line.rstrip() for line in written.rstrip().splitlines()] == [
        line.rstrip() for line in expected.rstrip().splitlines()
    ]


def _same(found: Any, expected: Any) -> bool:
    if isinstance(found, bool) or isinstance(expected, bool):
        return found is expected
    if isinstance(found, int | float) and isinstance(expected, int | float):
        if isinstance(found, int) and isinstance(expected, int):
            return found == expected
        try:
            return math.isclose(found, expected, rel_tol=_CLOSE, abs_tol=_CLOSE)
        except OverflowError:  # an integer that no float holds
            return False
    if isinstance(found, list) and isinstance(expected, list):
        return len(found) == len(expected) and all(map(_same, found, expected))
    if isinstance(found, dict) and isinstance(expected, dict):
        return found.keys() == expected.keys() and all(_same(found[key], value) for key, value in expected.items())
    return bool(found == expected)
