"""Compares what a program gave with what a test expects. Outside of the sandbox, on plain text and JSON values."""

from __future__ import annotations

import json
import math
import re
from decimal import ROUND_HALF_EVEN, Context, Decimal
from typing import Any

from tailrace.reward.settings import TOLERANCE

_STANDS_FROM = 6  # significant digits, or digits after the point
# A number as programs print it: 2, -0.5, 1e-09; no part of a word, of a version, or of a number with leading zeros.
_NUMBER = re.compile(r"(?<![\w.+-])-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:e[+-][0-9]{2,3})?(?![\w.])", re.ASCII)
_DIGITS = 1000  # a longer number is compared as text
_EXACT = Context(prec=3 * _DIGITS, Emax=10_000, Emin=-10_000)


def same_value(written: str, expected: Any, tolerance: float = TOLERANCE) -> bool:
    """Whether a value that a program wrote as JSON equals the expected one; true is not 1, and nan equals nothing.

    Args:
        written: the program's value.
        expected: the test's.
        tolerance: relative error of a float where either is one; where 0 is expected, the absolute error. An integer from 2^53
            on is met by its exact value alone.
    """
    try:
        if "NaN" not in written and written == json.dumps(expected):  # by far the quickest where values are large
            return True
        pairs = [(json.loads(written), expected)]
    except (ValueError, TypeError, RecursionError):
        return False
    while pairs:
        found, wanted = pairs.pop()
        if isinstance(found, list) and isinstance(wanted, list | tuple):
            if len(found) != len(wanted):
                return False
            pairs += zip(found, wanted, strict=True)
        elif isinstance(found, dict) and isinstance(wanted, dict):
            if found.keys() != wanted.keys():
                return False
            pairs += ((found[key], value) for key, value in wanted.items())
        elif not _same(found, wanted, tolerance):
            return False
    return True


def same_text(written: str, expected: str, tolerance: float = TOLERANCE) -> bool:
    """Whether two outputs are equal but for white space at the ends of lines and of the whole, and for how numbers are printed.

    Args:
        written: the program's output.
        expected: the test's.
        tolerance: relative error of a number where either is printed with a point or an exponent; where 0 is expected, the
            absolute error. An expected number of six significant digits or more, or as many after its point, also stands for
            all that round to it: ``0.333333`` is met by ``0.3333333333333333``. With 0, numbers too are compared as text.
    """
    found, wanted = written.rstrip().splitlines(), expected.rstrip().splitlines()
    return len(found) == len(wanted) and all(
        mine == other or (tolerance > 0 and _same_line(mine, other, tolerance))
        for mine, other in zip(map(str.rstrip, found), map(str.rstrip, wanted), strict=True)
    )


def _same(found: Any, expected: Any, tolerance: float) -> bool:
    if isinstance(found, bool) or isinstance(expected, bool):
        return found is expected
    if not (isinstance(found, int | float) and isinstance(expected, int | float)):
        return bool(found == expected)
    if isinstance(found, int) and isinstance(expected, int):
        return found == expected
    if found == expected:
        return True
    if not (math.isfinite(found) and math.isfinite(expected)) or _exact(found) or _exact(expected):
        return False
    return abs(found - expected) <= tolerance * (abs(expected) or 1)


def _exact(number: float) -> bool:
    """Whether a number is an integer that is too large for floats about it to be a little off."""
    return isinstance(number, int) and abs(number) >= 1 << 53


def _same_line(found: str, expected: str, tolerance: float) -> bool:
    if _NUMBER.split(found) != _NUMBER.split(expected):
        return False
    pairs = zip(_NUMBER.findall(found), _NUMBER.findall(expected), strict=True)
    return all(mine == other or _same_number(mine, other, tolerance) for mine, other in pairs)


def _same_number(found: str, expected: str, tolerance: float) -> bool:
    if not ({*found, *expected} & {".", "e"}) or max(len(found), len(expected)) > _DIGITS:
        return False  # two integers: their texts differ
    mine, other = Decimal(found), Decimal(expected)
    if mine == other:
        return True
    whole = not {*expected} & {".", "e"}
    if whole and abs(other) >= 1 << 53:
        return False
    if _EXACT.abs(_EXACT.subtract(mine, other)) <= _EXACT.multiply(Decimal(repr(tolerance)), abs(other) or Decimal(1)):
        return True
    _, digits, place = other.as_tuple()
    if whole or not isinstance(place, int) or max(len(digits), -place) < _STANDS_FROM or mine.adjusted() > _DIGITS:
        return False
    return mine.quantize(Decimal((0, (1,), place)), ROUND_HALF_EVEN, _EXACT) == other
