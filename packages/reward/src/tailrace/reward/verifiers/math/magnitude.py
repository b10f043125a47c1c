"""Tells expressions that would take for ever before they are computed: ``9^{9^9}``, ``(10^{10})!``, a sum of 10^9 terms."""

from __future__ import annotations

import re
from itertools import islice

from tailrace.contracts import extra

with extra("tailrace-reward", "math"):
    import sympy

_MAX_LETTERS = 400
_MAX_DEPTH = 20  # of brackets; the parser's time doubles with each level
_MAX_NODES = 400
_MAX_DIGITS = 10_000  # of a number that is written as a power or a factorial
_MAX_TERMS = 10_000
_HUGE = float("inf")
_DIGITS_OF_A_BIT = 0.302

# The parser evaluates these at once, so their arguments are limited in the text.
_EVALUATED = re.compile(r"\\(?:binom|tbinom|dbinom|choose|gcd|lcm|det|mathrm\{rref\})")
_LONG_INTEGER = re.compile(r"\d{4}")


def readable(text: str) -> bool:
    """Whether a text is short and flat enough for the parser."""
    return len(text) <= _MAX_LETTERS and flat(text) and not (_EVALUATED.search(text) and _LONG_INTEGER.search(text))


def flat(text: str) -> bool:
    """Whether brackets nest no deeper than in answers that people write."""
    depth = deepest = 0
    for letter in text:
        depth += (letter in "([{") - (letter in ")]}")
        deepest = max(deepest, depth)
    return deepest <= _MAX_DEPTH


def affordable(expression: sympy.Basic) -> bool:
    """Whether an expression can be evaluated without numbers or sums beyond all bounds."""
    nodes = sum(1 for _ in islice(sympy.preorder_traversal(expression), _MAX_NODES + 1))
    return nodes <= _MAX_NODES and _digits(expression) <= _MAX_DIGITS


def _digits(node: sympy.Basic) -> float:
    """An upper bound of the decimal digits of any number within an expression, infinite if one is too large to know."""
    inner = [_digits(argument) for argument in node.args]
    if max(inner, default=0.0) > _MAX_DIGITS:
        return _HUGE
    if isinstance(node, sympy.Rational):
        return max(int(node.p).bit_length(), int(node.q).bit_length()) * _DIGITS_OF_A_BIT
    if isinstance(node, sympy.Add):
        return max(inner) + len(inner)
    if isinstance(node, sympy.Mul):
        return sum(inner)
    if isinstance(node, sympy.Pow | sympy.exp):
        base, exponent = node.as_base_exp()
        if exponent.free_symbols:
            return max(inner)
        size = _size(exponent)
        return max(inner) if base.free_symbols and size < _MAX_DIGITS**2 else max(inner[0], 1.0) * size
    if isinstance(node, sympy.factorial | sympy.factorial2 | sympy.gamma):
        size = 0.0 if node.free_symbols else _size(node.args[0])
        return size * len(str(int(size))) if size < _MAX_DIGITS else _HUGE
    if isinstance(node, sympy.Sum | sympy.Product):
        for _, *bounds in node.limits:
            if not any(bound.free_symbols for bound in bounds) and _size(bounds[-1] - bounds[0]) > _MAX_TERMS:
                return _HUGE if bounds[-1] != sympy.oo else max(inner)
    return max(inner, default=0.0)


def _size(number: sympy.Basic) -> float:
    """The absolute value of a number whose parts are known to be affordable."""
    try:
        return abs(complex(sympy.N(number, 15)))
    except (TypeError, ValueError, OverflowError):
        return _HUGE
