"""Imports reasoning-gym, an optional package whose import takes seconds.

Scorers of several of its tasks (``countdown``, ``n_queens`` and others) hand an answer to `eval`, or to sympy's `parse_expr`,
which evaluates it too: what a model says, or a row, would run here with the rights of whoever runs Tailrace. So both are
replaced in reasoning-gym's modules, by functions that take literals and arithmetic alone.
"""

from __future__ import annotations

import ast
import sys
import warnings
from types import ModuleType
from typing import Any

from tailrace.contracts import extra

_MOST_LETTERS = 10_000
_MOST_EXPONENT = 1000
_ARITHMETIC = (ast.Expression, ast.Constant, ast.UnaryOp, ast.unaryop, ast.BinOp, ast.operator, ast.Load)
_LITERALS = (*_ARITHMETIC, ast.List, ast.Tuple)
_FORMULAS = (*_ARITHMETIC, ast.Name, ast.Call)
_FUNCTIONS = frozenset(
    """
    Integral sqrt exp log ln sin cos tan cot sec csc asin acos atan acot asec acsc sinh cosh tanh coth asinh acosh atanh Abs
    """.split()  # noqa: SIM905 (a function a line otherwise)
)


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
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise refused from None
    for node in nodes:
        if not isinstance(node, allowed) or (isinstance(node, ast.BinOp) and not _is_cheap(node)):
            raise refused
        if ast.Name in allowed and _is_text(node):
            raise refused  # sympy's functions evaluate a text, too
        if isinstance(node, ast.Name) and node.id.startswith("_"):
            raise refused
        if isinstance(node, ast.Call):
            known = isinstance(node.func, ast.Name) and node.func.id in _FUNCTIONS
            if not known or node.keywords:
                raise refused
    return tree


def _is_cheap(node: ast.BinOp) -> bool:
    """Whether an operation is one of numbers, and no power or shift that takes for ever."""
    if any(isinstance(side, ast.List | ast.Tuple) or _is_text(side) for side in (node.left, node.right)):
        return False
    if not isinstance(node.op, ast.Pow | ast.LShift):
        return True
    inner = [*ast.walk(node.right)]
    if any(isinstance(each, ast.Name) for each in inner):
        return True
    return not any(isinstance(each, ast.Pow | ast.LShift) or _is_text(each) or _is_large(each) for each in inner)


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and not isinstance(node.value, int | float | complex)


def _is_large(node: ast.AST) -> bool:
    number = node.value if isinstance(node, ast.Constant) else 0
    return isinstance(number, int | float | complex) and abs(number) > _MOST_EXPONENT
