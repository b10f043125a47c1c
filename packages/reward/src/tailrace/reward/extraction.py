"""Finds the final answer in a response. Never raises, since a response may be any text."""

from __future__ import annotations

import re

_TAG = re.compile(r"<answer>((?:(?!<answer>).)*?)</answer>", re.DOTALL)
_BOXED = "\\boxed{"
# A number as people write it: sign, thousands separators, decimals, exponent, or a fraction of two integers.
_NUMBER = re.compile(
    r"[-+]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:[eE][-+]?\d+|\s?/\s?\d+)?|[-+]?\.\d+(?:[eE][-+]?\d+)?"
)


def tagged(response: str) -> str | None:
    """The text of the last complete ``<answer>...</answer>``, stripped, or None."""
    found = _TAG.findall(response)
    return found[-1].strip() if found else None


def boxed(response: str) -> str | None:
    r"""The text of the last ``\boxed{...}``; braces may nest. None if there is none or it does not close."""
    start = response.rfind(_BOXED)
    if start < 0:
        return None
    depth, first = 1, start + len(_BOXED)
    for index in range(first, len(response)):
        depth += {"{": 1, "}": -1}.get(response[index], 0)
        if depth == 0:
            return response[first:index].strip()
    return None


def last_number(response: str) -> str | None:
    """The last number in the text, as written there, or None."""
    found = _NUMBER.findall(response)
    return found[-1] if found else None


def final_answer(response: str) -> str | None:
    r"""The text of the answer tag, else of the box, else None. A box inside the tag counts as the answer."""
    inside = tagged(response)
    if inside is None:
        return boxed(response)
    nested = boxed(inside)
    return inside if nested is None else nested
