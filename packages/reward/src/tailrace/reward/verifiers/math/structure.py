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
_GREEK = r"\\(?:alpha|beta|gamma|delta|theta|phi|varphi|omega|psi|lambda|mu)"
_ANGLE = rf"(?:{_GREEK}|\\angle\s*[A-Z]{{1,3}}|[A-Za-z])"
_NAME = re.compile(
    r"^(?:\\[a-zA-Z]+|[a-zA-Z]|[A-Z]{2,3}|\\angle\s*[A-Z]{1,3})(?:_(?:\{[^{}=<>]*\}|\w))?'*(?:\(\w+(?:,\s*\w+)*\))?$"
    r"|^\([a-zA-Z](?:,\s*[a-zA-Z])*\)$"
    r"|^[fghFGPEDST]'*\([^()=]*\)$"  # f(x + 1), P(X > 2)
    r"|^\|?\s*\\(?:overline|overrightarrow|vec|widehat)\s*\{\s*\w+\s*\}\s*\|?$|^\|\s*[A-Z]{2}\s*\|$"
    rf"|^\\(?:sin|cos|tan|cot|sec|csc)(?:\s*\^\s*\{{?\s*2\s*\}}?)?\s*[({{]?\s*\d*\s*{_ANGLE}(?:\s*[-+]\s*{_ANGLE})?\s*[)}}]?$"
)
_OR, _AND = (
    re.compile(rf"\s*,?\s*(?:\\text\{{\s*,?\s*{word}\s*\}}|(?<![a-zA-Z\\]){word}(?![a-zA-Z])|{sign})\s*", re.I)
    for word, sign in (("or", "或"), ("and", "且"))
)
_VARIABLE = rf"(?:[a-zA-Z]|{_GREEK})"
_BUILDER = re.compile(
    rf"^\\\{{\s*(?P<name>{_VARIABLE}|\([^()]*\))\s*(?:\\in\s*(?P<domain>\\mathbb\{{[RZNQC]\}}[^|:]*?))?\s*[|:]\s*(?P<said>.+)\\\}}$"
)
_REAL = re.compile(rf"\s*,\s*{_VARIABLE}\s*\\in\s*\\mathbb\{{R\}}\s*$")
_MEMBER = re.compile(rf"^(?P<name>{_VARIABLE})\s*\\in(?![a-zA-Z])\s*(?P<set>.+)$")
_SIGN = re.compile(r"\\(?:le|ge|ne)(?![a-zA-Z])|[<>=]")
_FALLING = re.compile(r"(?:>|\\ge(?![a-zA-Z]))[^<>=]+(?:>|\\ge(?![a-zA-Z]))")
_OF_NUMBERS = re.compile(r"[\[\]]|\\(?:infty|cup|cap)(?![a-zA-Z])")
_SET = re.compile(r"\\(?:cup|cap|setminus|mathbb|emptyset)(?![a-zA-Z])")


@dataclass(frozen=True, slots=True)
class AnswerShape:
    """An answer's parts. `brackets` are those of a tuple or an interval, such as ``[)``; words join a list if `worded`."""

    kind: Kind
    parts: tuple[str, ...]
    brackets: str = ""
    worded: bool = False


def shape(text: str) -> AnswerShape:
    """How an answer is built: one thing, a list (``1, 2 and 3``), a set, or something ordered (a tuple, an interval)."""
    text = text.strip()
    if bracketed := _BRACKETED_MATRIX.match(text):
        return AnswerShape("one", (bracketed[1],))
    if text in (r"\emptyset", r"\{\}", r"\{ \}"):
        return AnswerShape("set", ())
    opening, inside, closing = _enclosed(text)
    if opening == r"\{" and closing == r"\}":
        return AnswerShape("set", tuple(_split(inside)))
    if opening in ("(", "[", r"\langle"):
        parts = _split(inside)
        if len(parts) > 1:
            brackets = "()" if opening == r"\langle" else opening + closing
            return AnswerShape("ordered", tuple(parts), brackets)
        if opening == "(" and closing == ")":
            return shape(inside)
    parts = _split(_SEPARATOR.sub(",", thousands_joined(text)))
    if len(parts) > 1:
        return AnswerShape("list", tuple(parts), worded=_SEPARATOR.search(text) is not None)
    if text.count(r"\pm") == 1:
        before, after = (part.strip() for part in text.split(r"\pm"))
        return AnswerShape("list", (f"{before} + {after}" if before else after, f"{before} - {after}"))
    return AnswerShape("one", (thousands_joined(text),))


def builder(text: str) -> tuple[str, str, str] | None:
    r"""The name, the domain and the condition of a set that a condition describes, ``\{x \in D | x > 3\}``, or None."""
    found = _BUILDER.match(text.strip())
    return None if found is None else (found["name"], (found["domain"] or "").strip(), found["said"].strip())


def is_described(text: str) -> bool:
    """Whether an answer is a set by its condition, joins inequalities or intervals by words, or falls as ``3 > x > 1``."""
    if builder(text) is not None or _FALLING.search(text):
        return True
    joined = _OR.search(text) or _AND.search(text)
    return joined is not None and (_SIGN.search(text) or _OF_NUMBERS.search(text)) is not None


def is_in_interval(text: str) -> bool:
    r"""Whether an answer says that one name lies in an interval: ``x \in (1,2)`` is no point, and no list of two numbers."""
    member = _MEMBER.match(text.strip())
    return member is not None and shape(member["set"]).kind == "ordered"


def region(text: str) -> tuple[str, str] | None:
    r"""The name and the set of what an answer says of a real number, or None: ``x < 1 or x \ge 3`` says
    ``(-\infty, 1) \cup [3, \infty)`` of ``x``. An interval or a union says it of no name.
    """
    text = text.strip()
    if built := builder(text):
        name, domain, said = built
        found = region(_REAL.sub("", said)) if domain in ("", r"\mathbb{R}") else None
        return None if found is None or found[0] not in ("", name) else (name, found[1])
    for sign, joined in ((_OR, r"\cup"), (_AND, r"\cap")):
        parts = sign.split(text)
        if len(parts) > 1:
            found_parts = [region(part) for part in parts]
            names = {found[0] for found in found_parts if found is not None} - {""}
            if None in found_parts or len(names) > 1:
                return None
            return "".join(names), joined.join(f"({found[1]})" for found in found_parts if found is not None)
    if member := _MEMBER.match(text):
        found = region(member["set"])
        return None if found is None or found[0] else (member["name"], found[1])
    if not _SIGN.search(text):
        opening, inside, _ = _enclosed(text)
        is_set = (
            _SET.search(text) or (opening == r"\{" and inside) or (opening in ("(", "[") and len(_split(inside)) == 2)
        )
        return ("", text) if is_set else None
    return _of_signs(text)


def _of_signs(text: str) -> tuple[str, str] | None:
    """The name and the set of one inequality, equation or chain of two inequalities."""
    signs, terms = _SIGN.findall(text), [term.strip() for term in _SIGN.split(text)]
    if any(r"\in" in term or len(_split(term)) > 1 for term in terms):
        return None
    turned = {"<": ">", ">": "<", r"\le": r"\ge", r"\ge": r"\le"}
    if len(signs) == 2 and re.fullmatch(_VARIABLE, terms[1]) and terms[0] and terms[2]:
        if signs[0] in ("<", r"\le") and signs[1] in ("<", r"\le"):
            return terms[1], f"{'(['[signs[0] != '<']}{terms[0]},{terms[2]}{')]'[signs[1] != '<']}"
        if signs[0] in (">", r"\ge") and signs[1] in (">", r"\ge"):
            return terms[1], f"{'(['[signs[1] != '>']}{terms[2]},{terms[0]}{')]'[signs[0] != '>']}"
    if len(signs) != 1 or not all(terms):
        return None
    (name, end), (sign,) = terms, signs
    if not re.fullmatch(_VARIABLE, name):
        name, end, sign = end, name, turned.get(sign, sign)
    if not re.fullmatch(_VARIABLE, name) or re.search(rf"(?<![a-zA-Z\\]){re.escape(name)}(?![a-zA-Z])", end):
        return None
    written = {
        "<": rf"(-\infty,{end})", r"\le": rf"(-\infty,{end}]", ">": rf"({end},\infty)", r"\ge": rf"[{end},\infty)",
        "=": rf"\{{{end}\}}", r"\ne": rf"(-\infty,{end})\cup({end},\infty)",
    }  # fmt: skip
    return name, written[sign]


def thousands_joined(text: str) -> str:
    """The text with ``1,200`` and ``1 200`` as ``1200``, but not in brackets: ``(1,200)`` is a point."""
    if any(opening in text for opening in ("(", "[", r"\{", r"\langle")):
        return text
    return _THOUSANDS.sub(lambda found: re.sub(r"\D", "", found[0]), text)


def named(text: str) -> tuple[str, str]:
    """The name and the rest of ``x = 5``, ``f(x) = 2x`` or ``x \\in S``; without one, an empty name and the text."""
    text = re.sub(r"\\in(?=[^a-zA-Z\s])", r"\\in ", text)
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
