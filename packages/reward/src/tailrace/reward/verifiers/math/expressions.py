"""Compares expressions. math-verify's parser reads them; values at several points tell whether they are equal: quotients of
polynomials by exact residues, all others to 50 digits.

The library's own `verify` compares sets and inequalities. For expressions it is not asked: it calls 1/2004! and 1/2006!
equal, because it rounds their difference to 0, and `simplify` can take for ever.
"""

from __future__ import annotations

import logging
import random
import re
from functools import lru_cache
from itertools import islice, pairwise
from typing import Any

from tailrace.contracts import extra
from tailrace.reward.verifiers.notation import expression

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


with extra("tailrace-reward", "math"):
    import sympy
    from latex2sympy2_extended import latex2sympy
    from latex2sympy2_extended.latex2sympy2 import ConversionConfig
    from math_verify import verify

# It warns that its own timeouts are off. They need SIGALRM and the main thread, and would count time that the process waits.
logging.getLogger("math_verify").setLevel(logging.ERROR)

_DIGITS = 50
_AGREE = sympy.Float("1e-40")
_SUBSCRIPT_OF_A_NUMBER = re.compile(r"\d\s*_")  # the parser would leave it out
_CONVERSION = ConversionConfig(lowercase_symbols=False)
# Values for symbols: their signs and integers are always these, so that what differs in one of these places always differs. The
# digits behind the point are drawn anew by each process: an answer that agrees at known points only would be taken for equal.
_WHOLE = ((0, 0, 0, 0, 0, 0), (1, 2, 3, 1, 2, 1), (-1, 1, -3, 0, -2, 2), (2, -2, 0, -4, 1, -1))
_PLACES = 10**30
_DRAW = random.SystemRandom()
_POINTS = tuple(
    tuple(whole + sympy.Rational(_DRAW.randrange(_PLACES // 10, _PLACES - _PLACES // 10), _PLACES) for whole in point)
    for point in _WHOLE
)
_PRIME = 2**127 - 1
_RESIDUES = tuple(tuple(_DRAW.randrange(_PRIME) for _ in point) for point in _WHOLE)


@lru_cache(maxsize=256)
def parse(text: str) -> Any:
    """What an answer in plain LaTeX says, as a sympy object, or None if it cannot be read or would take for ever to compute."""
    written = expression(text)
    if not readable(written) or _SUBSCRIPT_OF_A_NUMBER.search(written):
        return None
    try:
        found = latex2sympy(written, is_real=True, normalization_config=None, conversion_config=_CONVERSION)
        if isinstance(found, sympy.MatrixBase):
            return found if all(affordable(element) for element in found) else None
        if not isinstance(found, sympy.Basic) or not affordable(found):
            return None
        return found.xreplace({symbol: sympy.I for symbol in found.free_symbols if symbol.name == "i"})
    except MemoryError:
        raise
    except Exception:
        # The parser raises plain Exception, and sympy several kinds, on a text that is no mathematics.
        return None


def equal(reference: str, response: str) -> bool:
    """Whether two texts say the same value, expression or matrix."""
    first, second = parse(reference), parse(response)
    if first is None or second is None:
        return False
    if isinstance(first, sympy.MatrixBase) and isinstance(second, sympy.MatrixBase):
        return first.shape == second.shape and all(map(_equal, first, second))
    return isinstance(first, sympy.Expr) and isinstance(second, sympy.Expr) and _equal(first, second)


def equal_relations(reference: str, response: str) -> bool:
    """Whether two equations or inequalities say the same: their differences of sides are in a constant ratio."""
    first, second = _relation(parse(reference)), _relation(parse(response))
    if first is None or second is None or first[1] != second[1]:
        return False
    found = _residues(first[0], second[0])
    if found is not None and any(a * d % _PRIME != b * c % _PRIME for (a, b), (c, d) in pairwise(found)):
        return False
    ratios = []
    for one, other in _values(first[0], second[0]):
        if _vanishes(one) or _vanishes(other):
            return False
        ratios.append(one / other)
    signed = first[1] in ("<", "<=")
    return len(ratios) > 1 and all(
        abs(ratio / ratios[0] - 1) < _AGREE and (not signed or sympy.re(ratio) > 0) for ratio in ratios
    )


def equal_sets(reference: str, response: str) -> bool:
    """Whether two texts say the same set, as intervals, unions or chains of inequalities."""
    first, second = parse(reference), parse(response)
    if first is None or second is None:
        return False
    first, second = _evaluated(first), _evaluated(second)
    if isinstance(first, sympy.FiniteSet) != isinstance(second, sympy.FiniteSet):
        return False  # the library takes the ends of an interval for its elements
    return first == second or bool(verify(first, second, allow_set_relation_comp=True, timeout_seconds=None))


def _evaluated(found: Any) -> Any:
    """A set as the parser leaves it, with its unions and intersections carried out."""
    if not isinstance(found, sympy.Union | sympy.Intersection | sympy.Complement):
        return found
    return found.func(*map(_evaluated, found.args))


def decimal_value(text: str, digits: int) -> str | None:
    """The value of a real constant expression, as a decimal with so many digits after the point."""
    found = parse(text)
    if not isinstance(found, sympy.Expr) or found.free_symbols:
        return None
    value = _evaluate(found, {})
    return None if value is None or not value.is_real else f"{value:.{digits}f}"


def _relation(found: Any) -> tuple[Any, str] | None:
    """The difference of an (in)equality's sides, which compares to 0 by the sign."""
    if not isinstance(found, sympy.core.relational.Relational) or not found.free_symbols:
        return None
    sides = (found.lhs, found.rhs) if not found.rel_op.startswith(">") else (found.rhs, found.lhs)
    if not all(isinstance(side, sympy.Expr) for side in sides):
        return None
    return sympy.Add(sides[0], -sides[1]), found.rel_op.replace(">", "<")


def _equal(first: Any, second: Any) -> bool:
    if not isinstance(first, sympy.Expr) or not isinstance(second, sympy.Expr):
        return False
    first, second = first.doit(), second.doit()
    if first == second:
        return not first.has(sympy.nan, sympy.zoo)
    if first.is_Rational and second.is_Rational:
        return False
    if first.is_infinite or second.is_infinite:
        return False
    if (exactly := _equal_fractions(first, second)) is not None:
        return exactly
    pairs = list(_values(first, second))
    return bool(pairs) and all(_agree(one, other) for one, other in pairs)


def _equal_fractions(first: Any, second: Any) -> bool | None:
    """Whether two quotients of polynomials are the same, by their residues at places nobody knows (Schwartz and Zippel).

    None if one is something else. It is exact but for a chance of the degree in 2^127, whatever the size of the difference.
    """
    found = _residues(first, second)
    return all(one == other for one, other in found) if found else None


def _residues(first: Any, second: Any) -> list[tuple[int, int]] | None:
    """The residues of two quotients of polynomials at each place where both are defined, or None if one is something else."""
    symbols = sorted(first.free_symbols | second.free_symbols, key=str)
    if len(symbols) > len(_RESIDUES[0]):
        return None
    pairs = []
    for residues in _RESIDUES:
        chosen = dict(zip(symbols, residues, strict=False))
        try:
            one, other = _residue(first, chosen), _residue(second, chosen)
        except ZeroDivisionError:
            continue
        if one is None or other is None:
            return None
        pairs.append((one, other))
    return pairs


def _residue(node: Any, chosen: dict[Any, int]) -> int | None:
    """The value modulo the prime, or None of what is no quotient of polynomials.

    Raises:
        ZeroDivisionError: something is divided by zero.
    """
    if node.is_Symbol:
        return chosen.get(node)
    if node.is_Rational:
        return int(node.p) * _inverse(int(node.q)) % _PRIME
    if not isinstance(node, sympy.Add | sympy.Mul | sympy.Pow):
        return None
    if isinstance(node, sympy.Pow):
        base = _residue(node.base, chosen) if node.exp.is_Integer else None
        if base is None:
            return None
        power = int(node.exp)
        return pow(base if power >= 0 else _inverse(base), abs(power), _PRIME)
    value = 0 if isinstance(node, sympy.Add) else 1
    for argument in node.args:
        part = _residue(argument, chosen)
        if part is None:
            return None
        value = (value + part if isinstance(node, sympy.Add) else value * part) % _PRIME
    return value


def _inverse(value: int) -> int:
    if value % _PRIME == 0:
        raise ZeroDivisionError
    return pow(value, -1, _PRIME)


def _agree(one: Any, other: Any) -> bool:
    if _vanishes(one) or _vanishes(other):
        return _vanishes(one) and _vanishes(other)
    return bool(abs(one - other) < _AGREE * abs(one))


def _vanishes(value: Any) -> bool:
    """Whether a value is zero. What cancels to less than its precision counts; a small number does not."""
    return all(part == 0 or getattr(part, "_prec", _DIGITS) == 1 for part in value.as_real_imag())


def _values(first: Any, second: Any) -> Any:
    """Both values at each point where both are defined."""
    symbols = sorted(first.free_symbols | second.free_symbols, key=str)
    if len(symbols) > len(_POINTS[0]):
        return
    for point in _POINTS if symbols else _POINTS[:1]:
        chosen = dict(zip(symbols, point, strict=False))
        one, other = _evaluate(first, chosen), _evaluate(second, chosen)
        if one is not None and other is not None:
            yield one, other


def _evaluate(expression: Any, chosen: dict[Any, Any]) -> Any:
    """The value to 50 digits, or None where it is not defined."""
    value = expression.evalf(_DIGITS, subs=chosen)
    return value if value.is_number and value.is_finite and not value.free_symbols and _is_computed(value) else None


def _is_computed(value: Any) -> bool:
    return all(part.is_Float or part.is_Integer for part in value.as_real_imag())
