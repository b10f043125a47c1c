"""Verifier ``numeric``: compares the answer's exact value, however it is written."""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from typing import Any

from tailrace.reward.errors import ScoringError
from tailrace.reward.extraction import final_answer, last_number
from tailrace.reward.turns import said

_MAX_DIGITS = 400  # with longer numbers or larger exponents, a response could make the scorer compute for ever
_LATEX_FRACTION = re.compile(r"^([-+]?)\\[dt]?frac\{([-+]?\d+)\}\{([-+]?\d+)\}$")
_WRAPPING = re.compile(r"\\(?:text|mathrm)\{[^{}]*\}|\\[,;! ()\[\]]|[$£€%_]|(?<!\d)\s+|\s+(?!\d)")
_FRACTION = re.compile(r"^([-+]?\d+)/([-+]?\d+)$")


def parse_number(text: str) -> Fraction | None:
    r"""The exact value of a number such as ``1,000``, ``-3.50``, ``2e3``, ``3/4``, ``\frac{3}{4}`` or ``$5``, or None."""
    if len(text) > _MAX_DIGITS:
        return None
    plain = _WRAPPING.sub("", text.replace("−", "-"))  # noqa: RUF001 (the typographic minus sign)
    plain = re.sub(r"(?<=\d),(?=\d{3}(?!\d))", "", plain).removesuffix(".")
    if latex := _LATEX_FRACTION.match(plain):
        sign, top, bottom = latex.groups()
        plain = f"{'-' if sign == '-' else ''}{top}/{bottom}".replace("--", "")
    if ratio := _FRACTION.match(plain):
        return Fraction(int(ratio[1]), int(ratio[2])) if int(ratio[2]) else None
    try:
        value = Decimal(plain)
    except InvalidOperation:
        return None
    if not value.is_finite() or abs(value.adjusted()) > _MAX_DIGITS:
        return None
    return Fraction(value)


def numeric(response: str, answer: str, metadata: Mapping[str, Any]) -> float:
    r"""1.0 if the response's number has exactly the value of `answer`, else 0.0.

    The number is the content of the answer tag or of ``\boxed{}``; without either, the last number of the response.

    Raises:
        ScoringError: `answer` is not a number.
    """
    reference = parse_number(answer)
    if reference is None:
        raise ScoringError(f"found the reference answer {answer[:60]!r}, expected a number; use the verifier 'exact'")
    response = said(response, metadata)
    found = final_answer(response)
    if found is None:
        found = last_number(response)
    return float(found is not None and parse_number(found) == reference)
