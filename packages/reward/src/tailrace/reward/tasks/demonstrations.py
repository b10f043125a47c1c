"""Worked responses to chained sums, with a chosen rate of errors."""

from __future__ import annotations

import random
from collections.abc import Sequence

Demonstration = tuple[str, str | Sequence[str]]
"""A prompt and its response: a text, or turns and what an environment answered, one after the other, beginning with a turn."""


def worked(expression: str, rng: random.Random, misread: float) -> str:
    """A response that works the expression out step by step; its only errors are minus signs misread as plus signs.

    ``7 - 2 + 5`` becomes ``<think> 7 - 2 = 5 + 5 = 10</think><answer> 10</answer>``. With its sign misread it becomes
    ``<think> 7 + 2 = 9 + 5 = 14</think><answer> 14</answer>``; the arithmetic after the misreading is always right.

    Args:
        expression: one-digit terms with ``+`` and ``-`` between them, separated by spaces.
        rng: decides which signs are misread.
        misread: probability of misreading, drawn for each minus sign.
    """
    first, *rest = expression.split()
    total = int(first)
    steps = [first]
    for sign, term in zip(rest[::2], rest[1::2], strict=True):
        read = "+" if sign == "-" and rng.random() < misread else sign
        total = total + int(term) if read == "+" else total - int(term)
        steps += [read, term, "=", str(total)]
    # A space before every number and operator and nowhere else, so that a tokenizer needs only one token for each.
    return f"<think> {' '.join(steps)}</think><answer> {total}</answer>"
