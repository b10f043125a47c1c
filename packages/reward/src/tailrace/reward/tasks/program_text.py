"""Python programs for specifications, with chosen mistakes."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from tailrace.reward.tasks.specification import Clause, Operation

_SIGNS = {
    Operation.ADD: "+",
    Operation.SUBTRACT: "-",
    Operation.MULTIPLY: "*",
    Operation.MODULO: "%",
    Operation.HALVE: "//",
}


def program(clauses: Sequence[Clause], misread: Collection[int] = (), endless: Collection[int] = ()) -> str:
    """The source of a function ``f`` that does what the clauses say, but for its mistakes.

    Spaces stand around every name, number and sign, so that a tokenizer needs one token for each, and a level of indentation
    is one space. A loop counts down to zero.

    Args:
        clauses: the specification.
        misread: places, from 0, of subtractions that are written as additions.
        endless: places of repetitions whose counter goes up, so that their loop never ends.
    """
    lines = ["def f(v0):"]
    for place, clause in enumerate(clauses):
        before, after = f"v{place}", f"v{place + 1}"
        sign = "+" if place in misread else _SIGNS[clause.operation]
        if clause.times:
            lines += [
                f" {after} , n = {before} , {clause.times}",
                " while n:",
                f"  {after} {sign}= {clause.number}",
                f"  n {'+' if place in endless else '-'}= 1",
            ]
        else:
            lines.append(f" {after} = {before} {sign} {clause.number}")
    return "\n".join([*lines, f" return v{len(clauses)}", ""])


def fenced(source: str) -> str:
    """A response with the program in a code fence."""
    return f"```python\n{source}```"
