"""Functions of one integer to be written in Python; the number of clauses and the time to run have long tails.

Hidden tests decide whether a program is right, so it must be run, in a sandbox. The demonstrator's loops sometimes never end.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tailrace.reward.tasks.demonstrations import Demonstration
from tailrace.reward.tasks.drawing import ZipfLengths, checked_probability, take_rows
from tailrace.reward.tasks.hidden_tests import hidden_tests
from tailrace.reward.tasks.program_text import fenced, program
from tailrace.reward.tasks.rows import Split, TaskRow
from tailrace.reward.tasks.specification import Clause, Operation, read_specification, specification

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
