"""Words of a prompt as baselines see them. Pure."""

from __future__ import annotations

import re

_WORD = re.compile(r"[^\W\d_]+|\d+|[^\w\s]")


def words_of(prompt: str) -> list[str]:
    """Lower-case words, numbers as ``0`` for each digit, and single signs: what a template of problems has in common."""
    return ["0" * min(len(word), 4) if word.isdigit() else word.lower() for word in _WORD.findall(prompt)]
