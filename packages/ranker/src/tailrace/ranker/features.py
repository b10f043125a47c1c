"""Numbers that a prompt's text gives: how long, how many numbers, how large, how deep, which words. Pure."""

from __future__ import annotations

import math
import re
import zlib

_WORD = re.compile(r"[^\W\d_]+|\d+|[^\w\s]")


def words_of(prompt: str) -> list[str]:
    """Lower-case words, numbers as ``0`` for each digit, and single signs: what a template of problems has in common."""
    return ["0" * min(len(word), 4) if word.isdigit() else word.lower() for word in _WORD.findall(prompt)]


_NUMBER = re.compile(r"\d+")
_WORD_BUCKETS = 64
_SIGNS = "+-*/=()[]{},.:;?!<>^|\"'"
COUNT = 18 + len(_SIGNS) + _WORD_BUCKETS
"""How many features a prompt has."""


def features_of(prompt: str) -> list[float]:
    """`COUNT` features of a prompt, finite, whatever the text."""
    words = words_of(prompt)
    letters = [word for word in words if word.isalpha()]
    # A number of hundreds of digits is not worth its value.
    numbers = [float(digits[:15]) for digits in _NUMBER.findall(prompt) if digits.isascii()]
    logs = [math.log1p(number) for number in numbers]
    lines = prompt.splitlines()
    found = [
        float(len(prompt)),
        math.log1p(len(prompt)),
        float(len(words)),
        float(len(letters)),
        float(len(set(letters))),
        float(max(map(len, letters), default=0)),
        sum(map(len, letters)) / max(1, len(letters)),
        float(len(lines)),
        float(max(map(len, lines), default=0)),
        float(len(numbers)),
        float(len(set(numbers))),
        max(logs, default=0.0),
        min(logs, default=0.0),
        math.fsum(logs),
        math.log1p(math.fsum(numbers)),
        float(sum(map(str.isdigit, prompt))),
        float(sum(map(str.isupper, prompt))),
        float(_depth(prompt)),
    ]
    found += [float(prompt.count(sign)) for sign in _SIGNS]
    buckets = [0.0] * _WORD_BUCKETS
    for word in letters:
        buckets[zlib.crc32(word.encode(errors="surrogatepass")) % _WORD_BUCKETS] += 1.0
    return found + buckets


def _depth(prompt: str) -> int:
    """How deep brackets are nested."""
    depth = deepest = 0
    for sign in prompt:
        if sign in "([{":
            depth += 1
            deepest = max(deepest, depth)
        elif sign in ")]}":
            depth = max(0, depth - 1)
    return deepest
