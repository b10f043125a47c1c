"""Finds the final answer in a response. Never raises, since a response may be any text."""

from __future__ import annotations

import re

_TAG = re.compile(r"<answer>((?:(?!<answer>).)*?)</answer>", re.DOTALL)
_BOXED = re.compile(r"\\(?:boxed|fbox|framebox)\s*\{")
_SOLUTION = re.compile(r"(?:^|\n)[ \t]*####[ \t]*(\S[^\n]*)\s*$")
# A number as people write it: sign, thousands separators, decimals, exponent, or a fraction of two integers.
_NUMBER = re.compile(
    r"[-+]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:[eE][-+]?\d+|\s?/\s?\d+)?|[-+]?\.\d+(?:[eE][-+]?\d+)?"
)


def tagged(response: str) -> str | None:
    """The text of the last complete ``<answer>...</answer>``, stripped, or None."""
    found = _TAG.findall(response)
    return found[-1].strip() if found else None


def boxed(response: str) -> str | None:
    r"""The text of the last ``\boxed{...}``, ``\boxed {...}`` or ``\fbox{...}``; braces may nest.

    None if there is none or the last does not close.
    """
    starts = [found.end() for found in _BOXED.finditer(response)]
    inside = _to_closing_brace(response, starts[-1]) if starts else None
    return None if inside is None else inside.strip()


def boxes(text: str) -> list[str]:
    r"""The texts of all ``\boxed{...}`` that stand in no other one and close, in order."""
    found, start = [], _BOXED.search(text)
    while start is not None:
        inside = _to_closing_brace(text, start.end())
        if inside is None:
            break
        found.append(inside.strip())
        start = _BOXED.search(text, start.end() + len(inside))
    return found


def unboxed(text: str) -> str:
    """The content of the boxes in an answer, as a list if there are several, or the answer itself."""
    found = dict.fromkeys(boxes(text))
    return ", ".join(found) if found else text


def solution_answer(answer: str) -> str:
    """What a reference answer asks for: what stands behind ``####`` in the last line, as in GSM8K, else all of it."""
    found = _SOLUTION.search(answer)
    return answer if found is None else found[1].strip()


def _to_closing_brace(text: str, first: int) -> str | None:
    """What stands from a place to the brace that closes it, or None if none does."""
    depth = 1
    for index in range(first, len(text)):
        depth += {"{": 1, "}": -1}.get(text[index], 0)
        if depth == 0:
            return text[first:index]
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
