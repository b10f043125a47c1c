"""Specifications of functions of one integer: clauses, the text that asks for them, and what they compute.

    Write f(v0) in Python:
     v1 add 3
     v2 repeat 5000 times subtract 2
     v3 halve
     return v3

Each variable is computed from the one before it. ``halve`` and ``modulo`` round and take remainders as Python does.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from tailrace.reward.errors import SpecificationError


class Operation(StrEnum):
    """What a clause does to the value, in the words of the text."""

    ADD = "add"
    SUBTRACT = "subtract"
    MULTIPLY = "multiply"
    MODULO = "modulo"
    HALVE = "halve"


@dataclass(frozen=True, slots=True)
class Clause:
    """One clause of a specification.

    Args:
        operation: the operation.
        number: its operand; 2 for `Operation.HALVE`.
        times: how often it is repeated, in a loop; 0 if the clause asks for no repetition. Only sums are repeated.
    """

    operation: Operation
    number: int
    times: int = 0

    def __str__(self) -> str:
        """The clause's words."""
        repeat = f"repeat {self.times} times " if self.times else ""
        return f"{repeat}{self.operation}{'' if self.operation is Operation.HALVE else f' {self.number}'}"


_CLAUSE = re.compile(r" v(\d+) (?:repeat (\d+) times (?=add|subtract))?(?:(add|subtract|multiply|modulo) (\d+)|halve)")
_FIRST, _LAST = "Write f(v0) in Python:", " return v"


def specification(clauses: Sequence[Clause]) -> str:
    """The text that asks for the clauses. A line break ends it."""
    lines = [f" v{place} {clause}" for place, clause in enumerate(clauses, 1)]
    return "\n".join([_FIRST, *lines, f"{_LAST}{len(clauses)}", ""])


def read_specification(text: str) -> list[Clause]:
    """The clauses of a text that `specification` wrote.

    Raises:
        SpecificationError: the text is another.
    """
    clauses = []
    for line in text.splitlines()[1:-1]:
        found = _CLAUSE.fullmatch(line)
        if found is None:
            raise SpecificationError(f"found the line {line!r:.60}, expected a clause such as ' v1 add 3'")
        _, times, operation, number = found.groups()
        clauses.append(Clause(Operation(operation or "halve"), int(number or 2), int(times or 0)))
    if specification(clauses) != text:
        raise SpecificationError(f"found {text!r:.60}, expected a specification as the task 'programs' writes it")
    return clauses


def evaluate(clauses: Sequence[Clause], argument: int) -> int:
    """What the specified function returns. A repetition costs no more time here than a single sum."""
    value = argument
    for clause in clauses:
        number = clause.number * max(1, clause.times)
        match clause.operation:
            case Operation.ADD:
                value += number
            case Operation.SUBTRACT:
                value -= number
            case Operation.MULTIPLY:
                value *= number
            case Operation.MODULO:
                value %= number
            case Operation.HALVE:
                value //= number
    return value
