"""Worked responses to chained sums, of a chosen quality."""

from __future__ import annotations

import random

Demonstration = tuple[str, str]
"""A prompt and a response to it."""


def worked(expression: str, rng: random.Random, misread: float) -> str:
    """A response that works the expression out step by step, right except that minus signs may be taken for plus signs.

    ``7 - 2 + 5`` becomes ``<think> 7 - 2 = 5 + 5 = 10</think><answer> 10</answer>``, or, with its sign misread,
    ``<think> 7 + 2 = 9 + 5 = 14</think><answer> 14</answer>``: the arithmetic of what was read is always right.

    Args:
        expression: one-digit terms with ``+`` and ``-`` between them, separated by spaces.
        rng: decides which signs are misread.
        misread: probability of it, at each minus sign anew.
    """
    first, *rest = expression.split()
    total = int(first)
    steps = [first]
    for sign, term in zip(rest[::2], rest[1::2], strict=True):
        read = "+" if sign == "-" and rng.random() < misread else sign
        total = total + int(term) if read == "+" else total - int(term)
        steps += [read, term, "=", str(total)]
    # A space in front of every number and operator and nowhere else: a tokenizer needs one token form for each.
    return f"<think> {' '.join(steps)}</think><answer> {total}</answer>"
