"""Answers that are words or the letter of a choice. They are compared as texts: the library takes words for products."""

from __future__ import annotations

import re

_TEXT = re.compile(r"\\text\s*\{([^{}]*)\}")
_COMMAND = re.compile(r"\\[a-zA-Z]+")
_CHOICE = re.compile(r"^(?:(?:option|choice|answer)\s+)?\(?([A-J])\)?(?:[.:)]+\s*(.*))?$", re.I)
_BARE_CHOICE = re.compile(r"^\(?([A-J])\)?\.?$")
_OTHER_CHOICE = re.compile(r"(?<![\w\\])[A-J](?!\w)")
_LONG = re.compile(r"[a-zA-Z]{3,}")
_SHORT = frozenset(("no", "on", "in", "up", "am", "pm", "to", "go", "so", "do", "he", "eh", "we", "is", "si"))
_READ = frozenset(
    """sin cos tan cot sec csc log exp sqrt arcsin arccos arctan sinh cosh
    tanh infinity inf det gcd lcm max min mod""".split()  # noqa: SIM905 (twenty lines otherwise)
)


def unwrapped(text: str) -> str:
    r"""The text with the content of each ``\text{...}`` in its place."""
    return " ".join(_TEXT.sub(r"\1", text).split())


def choice(text: str) -> str:
    """The letter of a choice, such as ``B`` of ``(B)``, ``b.`` or ``B) 12 metres``, or an empty text."""
    found = _CHOICE.match(unwrapped(text))
    if found is None or _OTHER_CHOICE.search(found[2] or ""):
        return ""
    return found[1].upper()


def is_choice(reference: str) -> bool:
    """Whether a reference answer is nothing but the letter of a choice."""
    return _BARE_CHOICE.match(unwrapped(reference)) is not None


def is_text(text: str) -> bool:
    """Whether an answer is words and no expression."""
    if r"\begin" in text:
        return False
    bare = _COMMAND.sub(" ", unwrapped(text))
    words = {word.lower() for word in _LONG.findall(bare)} - _READ
    return bool(words) or bare.strip().lower() in _SHORT


def same_text(reference: str, response: str) -> bool:
    """Whether two answers are the same words, whatever their case and white space."""
    return _folded(reference) == _folded(response)


def _folded(text: str) -> str:
    return " ".join(unwrapped(text).casefold().split())
