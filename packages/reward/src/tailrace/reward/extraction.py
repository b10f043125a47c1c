"""Finds in a response its final answer, or its program. Never raises, since a response may be any text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_TAG = re.compile(r"<answer>((?:(?!<answer>).)*?)</answer>", re.DOTALL)
_BOXED = re.compile(r"\\(?:boxed|fbox|framebox)\s*\{")
_SOLUTION = re.compile(r"(?:^|\n)[ \t]*####[ \t]*(\S[^\n]*)$")
# A number as people write it: sign, thousands separators, decimals, exponent, or a fraction of two integers, perhaps behind a
# whole number. A sign may be the typographic minus (U+2212), and an en dash (U+2013) that is none of a range.
_SIGN = r"(?:[-+\u2212]|(?<![\w.)\]}%])\u2013)?"
_THOUSANDS = r"(?:,|\{,\}|\\[,!;: ])"  # as people and as LaTeX have it
_POWER_OF_TEN = r"[eE][-+\u2212]?\d+"
_FRACTION = r"\\[dtc]?frac\s?\{-?\d+\}\s?\{-?\d+\}"
_NUMBER = re.compile(
    rf"{_SIGN}(?:\d+\s?)?{_FRACTION}|{_SIGN}\d+ \d+\s?/\s?\d+"
    rf"|{_SIGN}(?:\d{{1,3}}(?:{_THOUSANDS}\d{{3}})+|\d+)(?:\.\d+)?(?:{_POWER_OF_TEN}|\s?/\s?\d+)?|{_SIGN}\.\d+(?:{_POWER_OF_TEN})?"
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
    found = _SOLUTION.search(answer.rstrip())
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


@dataclass(slots=True)
class _Block:
    """A fenced block: the first word of its info string in lower case, and its text."""

    language: str
    text: str


_PYTHON = re.compile(r"[{.]*(?:python|py|ipython|pypy)[0-9.]*(?![\w-])")
_FENCE = re.compile(r"(?P<before>(?:[ \t>]|[-*+](?=[ \t])|[0-9]{1,9}[.)](?=[ \t]))*)(?P<marks>`{3,}|~{3,})(?P<info>.*)")
_LATE_FENCE = re.compile(
    r"(?P<before>)(?<!`)(?P<marks>`{3,})(?P<info>[ \t]*(?:python|py)[0-9.]*)[ \t]*$", re.IGNORECASE
)
_LOOSE = re.compile(r"```([^\n`]*)\n(.*?)```", re.DOTALL)
# Each is tried at the start of a line without its white space; none takes more than linear time on any text.
_STATEMENT = re.compile(
    r"(?:async\s+)?(?:def|class|for|while|if|with|try)\b.*:|import\s|from\s+\S+\s+import\b|@\w|[^=]+=\s*lambda\b"
    r"|(?:[^=()\"']+=\s*)?[\w.]+\(.*\)\s*(?:#.*)?$"
)
_ASSIGNMENT = re.compile(r"\w+\s*=[^=]")
_OUTPUT = re.compile(r"\b(?:print|stdout|write)\b")
_INPUT = re.compile(r"\b(?:input|stdin|fileinput)\b|\b(?:open|read)\(\s*0\s*[,)]")


def program_in(response: str, entry_point: str | None = None) -> str:
    """The program of a response: a complete fenced block, else its answer tag, else the whole response.

    Of several blocks the last one counts that can be the program: one that defines the entry point, or without one, one that
    prints, and reads its input too if one does.
    A sample of the output after it is none, nor is a block in another language. What stands before ``</think>`` counts only if
    there is no block behind it.

    Args:
        response: any text, in Markdown.
        entry_point: the function that is called, or ``Class.method``; None: the whole program is run.
    """
    thought, _, said = response.rpartition("</think>")
    blocks = _blocks(said) or (_blocks(thought) if thought else [])
    if blocks:
        ranks = [_rank(block, entry_point) for block in blocks]
        return blocks[max(range(len(blocks)), key=lambda place: (ranks[place], place))].text
    inside = tagged(response)
    return response if inside is None else inside


def python_blocks(text: str) -> list[str]:
    """The complete fenced blocks of a text, in Markdown, that are Python or name no language, in order."""
    return [block.text for block in _blocks(text) if not block.language or _PYTHON.match(block.language)]


def _rank(block: _Block, entry_point: str | None) -> int:
    """How likely a block is the program."""
    python = bool(_PYTHON.match(block.language))
    if block.language and not python:
        return 0
    lines = [line.strip() for line in block.text.splitlines()]
    if entry_point is not None:
        name = entry_point.split(".")[0]
        defines = re.compile(rf"(?:(?:async\s+)?def|class)\s+{name}\b|{name}\s*(?::[^=]+)?=[^=]")
        if any(map(defines.match, lines)):
            return 5
    if any(map(_STATEMENT.match, lines)):
        if entry_point is not None or not _OUTPUT.search(block.text):
            return 3
        return 5 if _INPUT.search(block.text) else 4
    return 2 if python or any(map(_ASSIGNMENT.match, lines)) else 1


def _blocks(text: str) -> list[_Block]:
    """The complete fenced blocks of a text, as CommonMark has them. Those within a block that is no program stand for it."""
    found = []
    for block in _fenced(text):
        inner = [] if _PYTHON.match(block.language) else list(_fenced(block.text))
        found += inner or [block]
    return found or [_Block(_language(info), inside) for info, inside in _LOOSE.findall(text)]


def _language(info: str) -> str:
    return (info.split() or [""])[0].lower()


def _fenced(text: str) -> Iterator[_Block]:
    opened: re.Match[str] | None = None
    kept: list[str] = []
    for line in re.findall(r"[^\n]*\n|[^\n]+", text):
        bare = line.rstrip("\r\n")
        if opened is None:
            opened = _FENCE.fullmatch(bare)
            if opened is None or (opened["marks"][0] == "`" and "`" in opened["info"]):
                opened = _LATE_FENCE.search(bare)
            kept = []
            continue
        before = opened["before"]
        line = _unquoted(line, before.count(">"))
        width = len(before) - before.rfind(">") - 1
        marks = line.strip()
        indented = len(line) - len(line.lstrip(" "))
        if indented <= width + 3 and len(marks) >= len(opened["marks"]) and not marks.strip(opened["marks"][0]):
            yield _Block(_language(opened["info"]), _outdented(kept, width))
            opened = None
        else:
            kept.append(line)


def _unquoted(line: str, depth: int) -> str:
    """A line without so many marks of a quote, if it has them."""
    for _ in range(depth):
        rest = line.lstrip(" \t")
        if not rest.startswith(">"):
            break
        line = rest[1:]
    return line


def _outdented(lines: list[str], width: int) -> str:
    """Lines without the white space that they all have, up to a width."""
    common = min((len(line) - len(line.lstrip(" \t")) for line in lines if line.strip()), default=0)
    return "".join(line[min(width, common) :] if line.strip() else line for line in lines)
