"""Functions of one integer to be written in Python; the number of clauses and the time to run have long tails.

Hidden tests decide whether a program is right, so it must be run, in a sandbox. The demonstrator's loops sometimes never end.

    Write f(v0) in Python:
     v1 add 3
     v2 repeat 5000 times subtract 2
     v3 halve
     return v3

Each variable is computed from the one before it. ``halve`` and ``modulo`` round and take remainders as Python does.
"""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from tailrace.reward.errors import SpecificationError
from tailrace.reward.tasks.protocol import Demonstration, Split, TaskRow, ZipfLengths, checked_probability, take_rows


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


_FEWEST, _MOST = 3, 6
_ARGUMENTS = range(-99, 100)
_CANDIDATES = 40  # arguments that are tried for the tests of one function
_ALL_SUBSETS = 4  # with so many subtractions, every set of misread ones is tried; with more, _SUBSETS of them
_SUBSETS = 24


def hidden_tests(clauses: Sequence[Clause], rng: random.Random) -> list[dict[str, Any]] | None:
    """Three to six tests as rows have them: ``{"args": [7], "expected": 12}``.

    At least one of them fails for each function that leaves a clause out, that misreads a subtraction as an addition, or that
    misreads several; and for each that returns the same for all arguments. None where no six tests are found that do so.
    """
    arguments = rng.sample(_ARGUMENTS, _CANDIDATES)
    chosen, spare = arguments[:_FEWEST], iter(arguments[_FEWEST:])
    expected = {argument: evaluate(clauses, argument) for argument in chosen}
    wrong = [other for other in _mistakes(clauses, rng) if _passes(other, expected)]
    while wrong or len(set(expected.values())) == 1:
        argument = next(spare, None)
        if argument is None or len(expected) == _MOST:
            return None
        value = evaluate(clauses, argument)
        left = [other for other in wrong if evaluate(other, argument) == value]
        if len(left) < len(wrong) or value not in expected.values():
            wrong, expected[argument] = left, value
    return [{"args": [argument], "expected": value} for argument, value in expected.items()]


def _passes(clauses: Sequence[Clause], expected: dict[int, int]) -> bool:
    return all(evaluate(clauses, argument) == value for argument, value in expected.items())


def misreadings(clauses: Sequence[Clause], rng: random.Random) -> Iterator[list[Clause]]:
    """The specification with one or more of its subtractions misread: every set of them, or many sets of many."""
    places = [place for place, clause in enumerate(clauses) if clause.operation is Operation.SUBTRACT]
    if len(places) <= _ALL_SUBSETS:
        subsets = [set(chosen) for size in range(len(places)) for chosen in itertools.combinations(places, size + 1)]
    else:
        drawn = [{place for place in places if rng.random() < 0.5} for _ in range(_SUBSETS)]
        subsets = [*({place} for place in places), set(places), *filter(None, drawn)]
    for subset in subsets:
        yield [
            replace(clause, operation=Operation.ADD) if place in subset else clause
            for place, clause in enumerate(clauses)
        ]


def _mistakes(clauses: Sequence[Clause], rng: random.Random) -> Iterator[Sequence[Clause]]:
    yield from misreadings(clauses, rng)
    for place in range(len(clauses)):
        yield [*clauses[:place], *clauses[place + 1 :]]


_WEIGHTS = {
    Operation.ADD: 0.45,
    Operation.SUBTRACT: 0.35,
    Operation.MULTIPLY: 0.07,
    Operation.MODULO: 0.07,
    Operation.HALVE: 0.06,
}
_NUMBERS = {
    Operation.ADD: range(1, 10),
    Operation.SUBTRACT: range(1, 10),
    Operation.MULTIPLY: range(2, 4),
    Operation.MODULO: (1_000, 10_000),
    Operation.HALVE: range(2, 3),
}
_TIMES = (1_000, 10_000, 100_000, 1_000_000, 4_000_000)  # few, since a tiny model learns each number by itself
_MOST_LOOPS = 4
_MOST_ITERATIONS = _TIMES[-1]  # of all loops of one function together

START_S = 0.002
"""CPU seconds of a test without a loop, rounded up; part of a row's ``reference_time_s``."""
ITERATION_S = 6e-8
"""CPU seconds of one iteration of a reference's loop (CPython 3.11 on server cores of the 2020s: 5e-8 to 7e-8)."""


@dataclass(frozen=True, slots=True)
class Programs:
    """A distribution over functions to write.

    Args:
        name: the task's name.
        min_clauses: fewest clauses, at least 1.
        max_clauses: most clauses.
        exponent: the number of clauses n is drawn with probability proportional to (n - min_clauses + 1) ** -exponent, and
            a loop's number of iterations with probability proportional to iterations ** (-exponent / 4).
        warm_exponent: the exponent for `warm_start`; a smaller one shows long functions and long loops more often than
            training asks them.
        repeated: probability that a sum or difference is repeated in a loop.
        misread: default probability that a demonstration writes a subtraction as an addition, drawn for each.
        endless: probability that the counter of a demonstration's loop goes the wrong way, drawn for each loop.
    """

    name: str
    min_clauses: int
    max_clauses: int
    exponent: float
    warm_exponent: float
    repeated: float
    misread: float
    endless: float

    verifier = "code"
    """The verifier of its rows."""

    environment = no_tool_prefix = ""
    """A response is one turn."""

    forced_prefix = "```python\ndef f(v0):"
    """The beginning of a response with a program. An evaluation that forces it shows a gain in style alone."""

    def __post_init__(self) -> None:
        if not 1 <= self.min_clauses <= self.max_clauses:
            raise ValueError(
                f"found {self.min_clauses} to {self.max_clauses} clauses, expected 1 <= min_clauses <= max_clauses"
            )

    def generate(self, split: Split, size: int, seed: int) -> list[TaskRow]:
        """Rows of one split; see `GeneratedTask`. Each has a reference program, hidden tests and the reference's time.

        ``reference_time_s`` is reckoned from the reference's iterations and not measured, so that the same seed gives the
        same rows on every machine: `START_S` and `ITERATION_S` for each.

        Raises:
            TooFewQuestionsError: the task has fewer distinct held-out questions than `size`.
        """
        return take_rows(self.name, split, size, self._draws(split, seed, self.exponent))

    def demonstrations(self, rows: Sequence[TaskRow], seed: int, misread: float | None = None) -> list[Demonstration]:
        """A program for each row's prompt, some subtractions written as additions, some loops endless; see `GeneratedTask`.

        With ``misread=0`` no loop is endless either.

        Raises:
            SpecificationError: a row is not of this task.
        """
        probability = checked_probability("misread", self.misread if misread is None else misread)
        endless = self.endless if probability else 0.0
        rng = random.Random(f"{self.name}/demonstrations/{seed}")
        return [(row["prompt"], _demonstrated(row["prompt"], rng, probability, endless)) for row in rows]

    def warm_start(self, size: int, seed: int, misread: float | None = None) -> list[Demonstration]:
        """Demonstrations of training questions, whose numbers of clauses follow `warm_exponent`; see `GeneratedTask`."""
        rows = take_rows(self.name, "train", size, self._draws("train", seed, self.warm_exponent))
        return self.demonstrations(rows, seed, misread)

    def _draws(self, split: Split, seed: int, exponent: float) -> Iterator[TaskRow]:
        rng = random.Random(f"{self.name}/{split}/{seed}")
        weights = [times ** (-exponent / 4) for times in _TIMES]
        for length in ZipfLengths(self.min_clauses, self.max_clauses, exponent).draw(rng):
            clauses = self._clauses(length, weights, rng)
            tests = hidden_tests(clauses, rng)
            if tests is None:
                continue
            iterations = sum(clause.times for clause in clauses)
            yield TaskRow(
                prompt=specification(clauses),
                answer=program(clauses),
                verifier=Programs.verifier,
                metadata={
                    "entry_point": "f",
                    "tests": tests,
                    "reference_time_s": round(START_S + ITERATION_S * iterations, 6),
                },
            )

    def _clauses(self, length: int, weights: Sequence[float], rng: random.Random) -> list[Clause]:
        clauses: list[Clause] = []
        loops, iterations = 0, 0
        for operation in rng.choices(list(_WEIGHTS), list(_WEIGHTS.values()), k=length):
            times = 0
            if (
                operation in (Operation.ADD, Operation.SUBTRACT)
                and loops < _MOST_LOOPS
                and rng.random() < self.repeated
            ):
                drawn = rng.choices(_TIMES, weights)[0]
                times = drawn if iterations + drawn <= _MOST_ITERATIONS else _TIMES[0]
                loops, iterations = loops + 1, iterations + times
            clauses.append(Clause(operation, rng.choice(_NUMBERS[operation]), times))
        return clauses


def _demonstrated(prompt: str, rng: random.Random, misread: float, endless: float) -> str:
    clauses = read_specification(prompt)
    signs = {
        place
        for place, clause in enumerate(clauses)
        if clause.operation is Operation.SUBTRACT and rng.random() < misread
    }
    counters = {place for place, clause in enumerate(clauses) if clause.times and rng.random() < endless}
    return fenced(program(clauses, signs, counters))
