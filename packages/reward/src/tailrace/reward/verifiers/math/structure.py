"""Finds the parts of an answer: lists, sets, tuples, intervals, and the name before an equals sign."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

Kind = Literal["one", "list", "set", "ordered"]

_OPEN = {"(": ")", "[": "]", r"\{": r"\}", r"\langle": r"\rangle", "{": "}"}
_TOKEN = re.compile(r"\\[\\{}]|\\[a-zA-Z]+|.", re.DOTALL)
_SEPARATOR = re.compile(
    r"\s*,?\s*\\text\{\s*,?\s*(?:and|or)\s*\}\s*|\s*,?\s*(?<![a-zA-Z\\])(?:and|or)(?![a-zA-Z])\s*", re.I
)
_THOUSANDS = re.compile(r"(?<![\d.,])\d{1,3}(?:(,|\s|_|')\d{3})(?:\1\d{3})*(?![\d,])")
_BRACKETED_MATRIX = re.compile(r"^[(\[]\s*(\\begin\{matrix\}.*\\end\{matrix\})\s*[)\]]$")
_NAME = re.compile(
    r"^(?:\\[a-zA-Z]+|[a-zA-Z]|[A-Z]{2,3}|\\angle\s*[A-Z]{1,3})(?:_(?:\{\w+\}|\w))?'*(?:\(\w+(?:,\s*\w+)*\))?$"
    r"|^\([a-zA-Z](?:,\s*[a-zA-Z])*\)$"
)


@dataclass(frozen=True, slots=True)
class Shape:
    """An answer's parts. `brackets` are those of a tuple or an interval, such as ``[)``."""

    kind: Kind
    parts: tuple[str, ...]
    brackets: str = ""


def shape(text: str) -> Shape:
    """How an answer is built: one thing, a list (``1, 2 and 3``), a set, or something ordered (a tuple, an interval)."""
    text = text.strip()
    if bracketed := _BRACKETED_MATRIX.match(text):
        return Shape("one", (bracketed[1],))
    if text in (r"\emptyset", r"\{\}", r"\{ \}"):
        return Shape("set", ())
    opening, inside, closing = _enclosed(text)
    if opening == r"\{" and closing == r"\}":
        return Shape("set", tuple(_split(inside)))
    if opening in ("(", "[", r"\langle"):
        parts = _split(inside)
        if len(parts) > 1:
            brackets = "()" if opening == r"\langle" else opening + closing
            return Shape("ordered", tuple(parts), brackets)
        if opening == "(" and closing == ")":
            return shape(inside)
    parts = _split(_SEPARATOR.sub(",", thousands_joined(text)))
    if len(parts) > 1:
        return Shape("list", tuple(parts))
    if text.count(r"\pm") == 1:
        before, after = (part.strip() for part in text.split(r"\pm"))
        return Shape("list", (f"{before} + {after}" if before else after, f"{before} - {after}"))
    return Shape("one", (thousands_joined(text),))


def thousands_joined(text: str) -> str:
    """The text with ``1,200`` and ``1 200`` as ``1200``, but not in brackets: ``(1,200)`` is a point."""
    if any(opening in text for opening in ("(", "[", r"\{", r"\langle")):
        return text
    return _THOUSANDS.sub(lambda found: re.sub(r"\D", "", found[0]), text)


def named(text: str) -> tuple[str, str]:
    """The name and the rest of ``x = 5``, ``f(x) = 2x`` or ``x \\in S``; without one, an empty name and the text."""
    for sign in ("=", r"\in "):
        at = _top_level(text, sign)
        if at > 0:
            name = text[:at].strip()
            if _NAME.match(name) and name not in (r"\pi", r"\infty"):
                return name.replace(" ", ""), text[at + len(sign) :].strip()
    return "", text


def chain(text: str) -> list[str]:
    """The members of ``a = b = c``, of which there is one if there is no equals sign outside brackets."""
    members = []
    while (at := _top_level(text, "=")) >= 0:
        members.append(text[:at].strip())
        text = text[at + 1 :]
    return [*members, text.strip()]


def _enclosed(text: str) -> tuple[str, str, str]:
    """The first bracket, what it encloses and its closing one, if that ends the text; a half-open interval's may differ."""
    tokens = [(found.start(), found[0]) for found in _TOKEN.finditer(text)]
    if not tokens or tokens[0][1] not in ("(", "[", r"\{", r"\langle") or len(tokens) < 2:
        return "", "", ""
    opening, (last, closing) = tokens[0][1], tokens[-1]
    pairs = {"(": ")]", "[": ")]"}
    if closing not in pairs.get(opening, (_OPEN[opening],)):
        return "", "", ""
    depth = 0
    for at, token in tokens:
        depth += (token in _OPEN) - (token in _OPEN.values())
        if depth == 0 and at < last:
            return "", "", ""
    return (opening, text[len(opening) : last], closing) if depth == 0 else ("", "", "")


def _split(text: str) -> list[str]:
    """The parts between the commas and semicolons outside all brackets."""
    parts, start, depth = [], 0, 0
    for found in _TOKEN.finditer(text):
        token = found[0]
        depth += (token in _OPEN) - (token in _OPEN.values())
        if token in (",", ";") and depth == 0:
            parts.append(text[start : found.start()])
            start = found.end()
    parts = [part.strip() for part in [*parts, text[start:]]]
    return parts if all(parts) else [text.strip()]


def _top_level(text: str, sign: str) -> int:
    depth = 0
    for found in _TOKEN.finditer(text):
        if depth == 0 and text.startswith(sign, found.start()):
            before = text[: found.start()].rstrip()
            if sign != "=" or not before.endswith(("<", ">", "!")):
                return found.start()
        depth += (found[0] in _OPEN) - (found[0] in _OPEN.values())
    return -1
