"""Imports reasoning-gym, an optional package whose import takes seconds.

Scorers of several of its tasks (``countdown``, ``n_queens`` and others) hand an answer to `eval`, or to sympy's `parse_expr`,
which evaluates it too: what a model says, or a row, would run here with the rights of whoever runs Tailrace. So both are
replaced in reasoning-gym's modules, by functions that take literals and arithmetic alone.
"""

from __future__ import annotations

import ast
import math
import sys
import warnings
from functools import cache
from types import ModuleType
from typing import Any

from tailrace.contracts import extra

_MOST_LETTERS = 10_000
_MOST_BITS = 100_000  # of a number on the way
_ARITHMETIC = (ast.Expression, ast.Constant, ast.UnaryOp, ast.unaryop, ast.BinOp, ast.operator, ast.Load)
_LITERALS = (*_ARITHMETIC, ast.List, ast.Tuple)
_FORMULAS = (*_ARITHMETIC, ast.Name, ast.Call)
_FUNCTIONS = frozenset(
    """
    Integral sqrt exp log ln sin cos tan cot sec csc asin acos atan acot asec acsc sinh cosh tanh coth asinh acosh atanh Abs
    """.split()  # noqa: SIM905 (a function a line otherwise)
)


@cache
def import_reasoning_gym() -> Any:
    """Import and return the package reasoning_gym, whose scorers evaluate literals and arithmetic alone.

    Raises:
        MissingExtraError: the package is not installed.
    """
    with extra("tailrace-reward", "reasoning-gym"), warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)  # one of its dependencies compares strings with `is`
        import reasoning_gym
        import sympy
    safe = _Sympy("sympy")
    for name, module in [*sys.modules.items()]:
        if name.partition(".")[0] != "reasoning_gym":
            continue
        own = {"eval": evaluated}
        for word, value in vars(module).items():
            if value is sympy:
                own[word] = safe  # type: ignore[assignment]
            elif value is sympy.parse_expr:
                own[word] = parsed
        vars(module).update(own)
    return reasoning_gym


class _Sympy(ModuleType):
    """The module sympy, but for its `parse_expr`."""

    def __getattr__(self, name: str) -> Any:
        import sympy

        return parsed if name == "parse_expr" else getattr(sympy, name)


def evaluated(text: str) -> Any:
    """What `eval` gives for a number, a text, a list or a tuple of them, or arithmetic with numbers.

    Raises:
        ValueError: it is something else.
    """
    code = compile(_checked(text, _LITERALS), "<answer>", "eval")
    return eval(code, {"__builtins__": {}})  # noqa: S307 (literals and arithmetic alone)


def parsed(text: str, *arguments: Any, **options: Any) -> Any:
    """What sympy's `parse_expr` gives for a formula of numbers, symbols and elementary functions.

    Raises:
        ValueError: it is something else.
    """
    import sympy

    return sympy.parse_expr(ast.unparse(_checked(text, _FORMULAS)), *arguments, **options)


def _checked(text: str, allowed: tuple[type[ast.AST], ...]) -> ast.Expression:
    refused = ValueError(f"found {text[:60]!r}, expected {'a formula' if ast.Name in allowed else 'literals'} alone")
    if len(text) > _MOST_LETTERS:
        raise refused
    try:
        tree = ast.parse(text.strip(), mode="eval")
        nodes = [*ast.walk(tree)]
        large = _largest(tree.body) > _MOST_BITS
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise refused from None
    if large or not all(isinstance(node, allowed) for node in nodes):
        raise refused
    for node in nodes:
        if ast.Name in allowed and _is_text(node):
            raise refused  # sympy's functions evaluate a text, too
        if isinstance(node, ast.Name) and node.id.startswith("_"):
            raise refused
        if isinstance(node, ast.Call):
            known = isinstance(node.func, ast.Name) and node.func.id in _FUNCTIONS
            if not known or node.keywords:
                raise refused
    return tree


def _largest(node: ast.AST) -> float:
    """Bits of the largest number of an expression, which may be a list."""
    match node:
        case ast.List(elts=inner) | ast.Tuple(elts=inner):
            return max([0.0, *map(_largest, inner)])
        case ast.Constant():
            return 0.0
    return _bits(node)


def _bits(node: ast.AST) -> float:
    """Bits of the largest number on the way to an expression's value, at most. A power with a symbol in it is not computed.

    Raises:
        ValueError: a text or a list is in it.
    """
    match node:
        case ast.Constant(value=int() | float() | complex() as value):
            return max(1.0, math.log2(abs(value) + 1)) if math.isfinite(abs(value)) else math.inf
        case ast.UnaryOp(operand=inner):
            return _bits(inner)
        case ast.Call(args=arguments):
            return max([1.0, *map(_bits, arguments)])
        case ast.BinOp(left=left, op=ast.Pow() | ast.LShift() as op, right=right):
            most, exponent = _bits(left), _bits(right)
            if any(isinstance(each, ast.Name) for each in ast.walk(right)):
                return max(most, exponent)
            times = math.pow(2.0, min(exponent, 64.0))
            return most * times if isinstance(op, ast.Pow) else most + times
        case ast.BinOp(left=left, right=right):
            return _bits(left) + _bits(right)
        case ast.Name():
            return 1.0
    raise ValueError(node)


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and not isinstance(node.value, int | float | complex)
