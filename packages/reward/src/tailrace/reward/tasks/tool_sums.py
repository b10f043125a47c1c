"""Chains of sums and lengths of words, too long for a small model's head: a Python tool computes them, part by part.

    v0 = 7
    v1 = v0 - 5
    v2 = v1 + len("river")
    show v2 % 100
    v3 = v2 * 3
    v4 = v3 - 2
    show v4 % 100

A worked response takes one turn for each part: the model hands its lines to the tool, which prints the value so far. The last
turn gives it as the answer. Each line has a name of its own, and each operand is one word behind its sign, by which even a
tiny model finds its way. The demonstrator takes minus signs for plus signs, at each sign anew, and sometimes answers at once
from the head, which is a guess.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tailrace.reward.tasks.protocol import Demonstration, Split, TaskRow, ZipfLengths, checked_probability, take_rows

_NUMBERS = range(1, 10)
_LINES = range(2, 4)  # of a part, without its first value
_SIGNS, _WEIGHTS = ("+", "-", "*"), (0.4, 0.5, 0.1)
_FACTORS = range(2, 4)
_WORDS = ("mill", "river", "sluice", "weir", "canal", "turbine", "ox", "reservoir")  # few: each as frequent as a number
_MODULUS = 100
_MOST_PARTS = 4


@dataclass(frozen=True, slots=True)
class SumLine:
    """A line: the value before, a sign, and a number or a word.

    Args:
        sign: ``+``, ``-`` or ``*``; empty for the first line, which has no value before it.
        number: the number; unused where there is a word.
        word: the word whose length is taken; empty for a number.
    """

    sign: str
    number: int
    word: str = ""

    def value(self, before: int, sign: str) -> int:
        """The line's value, with a sign that may be misread."""
        operand = len(self.word) if self.word else self.number
        match sign:
            case "+":
                return before + operand
            case "-":
                return before - operand
            case "*":
                return before * operand
        return operand

    def text(self, place: int, sign: str) -> str:
        """The line in Python, and in the question."""
        operand = f'len("{self.word}")' if self.word else str(self.number)
        return f"v{place} = v{place - 1} {sign} {operand}" if sign else f"v{place} = {operand}"


Part = tuple[SumLine, ...]


@dataclass(frozen=True, slots=True)
class Transcript:
    """A demonstration of several turns.

    Args:
        prompt: the question.
        turns: the demonstrator's turns, each with what the tool answers; nothing after the last.
    """

    prompt: str
    turns: tuple[tuple[str, str], ...]

    def demonstration(self) -> Demonstration:
        """The prompt, and its turns with the tool's answers between them."""
        texts = [text for turn in self.turns for text in turn]
        return self.prompt, texts[:-1]


@dataclass(frozen=True, slots=True)
class ToolSums:
    """A distribution over such questions.

    Args:
        name: the task's name.
        max_parts: most parts, from 1 to 4.
        exponent: the number of parts n is drawn with probability proportional to n ** -exponent.
        warm_exponent: the exponent for `warm_start`; a smaller one shows long questions more often than training asks them.
        worded: probability that a sum or difference is of a word's length.
        misread: default probability that a demonstration reads a minus sign as a plus sign, drawn for each sign.
        direct: probability that a demonstration answers at once, without the tool.
    """

    name: str
    max_parts: int
    exponent: float
    warm_exponent: float
    worded: float
    misread: float
    direct: float

    verifier = "exact"
    """The verifier of its rows: only an answer counts that is given as one, not a value that the tool printed."""

    environment = "python"
    """The environment that computes."""

    forced_prefix = "```python\nv0 ="
    """The beginning of a response that uses the tool. An evaluation that forces it shows a gain in style alone."""

    no_tool_prefix = "<answer>"
    """The beginning of a response that answers from the head."""

    def __post_init__(self) -> None:
        if not 1 <= self.max_parts <= _MOST_PARTS:
            raise ValueError(f"found {self.max_parts} parts, expected 1 to {_MOST_PARTS}")

    def generate(self, split: Split, size: int, seed: int) -> list[TaskRow]:
        """Rows of one split; see `GeneratedTask`."""
        rows = (_row(parts) for parts in self._draws(split, seed, self.exponent))
        return take_rows(self.name, split, size, rows)

    def demonstrations(self, rows: Sequence[TaskRow], seed: int, misread: float | None = None) -> list[Demonstration]:
        """The conversations of `transcripts`; see `GeneratedTask`."""
        return [transcript.demonstration() for transcript in self.transcripts(rows, seed, misread)]

    def transcripts(self, rows: Sequence[TaskRow], seed: int, misread: float | None = None) -> list[Transcript]:
        """A worked conversation for each row, some minus signs misread.

        With ``misread=0`` none answers from the head either.

        Raises:
            KeyError, TypeError: a row is not of this task.
        """
        probability = checked_probability("misread", self.misread if misread is None else misread)
        direct = self.direct if probability else 0.0
        rng = random.Random(f"{self.name}/demonstrations/{seed}")
        return [
            Transcript(row["prompt"], _worked(_read_parts(row["metadata"]["parts"]), rng, probability, direct))
            for row in rows
        ]

    def warm_start(self, size: int, seed: int, misread: float | None = None) -> list[Demonstration]:
        """Conversations about training questions, whose numbers of parts follow `warm_exponent`; see `GeneratedTask`."""
        drawn = (_row(parts) for parts in self._draws("train", seed, self.warm_exponent))
        return self.demonstrations(take_rows(self.name, "train", size, drawn), seed, misread)

    def _draws(self, split: Split, seed: int, exponent: float) -> Iterator[list[Part]]:
        rng = random.Random(f"{self.name}/{split}/{seed}")
        for count in ZipfLengths(1, self.max_parts, exponent).draw(rng):
            parts = [tuple(self._line(rng) for _ in range(rng.choice(_LINES))) for _ in range(count)]
            parts[0] = (SumLine("", rng.choice(_NUMBERS)), *parts[0])
            yield parts

    def _line(self, rng: random.Random) -> SumLine:
        sign = rng.choices(_SIGNS, _WEIGHTS)[0]
        if sign == "*":
            return SumLine(sign, rng.choice(_FACTORS))
        if rng.random() < self.worded:
            return SumLine(sign, 0, rng.choice(_WORDS))
        return SumLine(sign, rng.choice(_NUMBERS))


def _row(parts: Sequence[Part]) -> TaskRow:
    asked = _written(parts, [[line.sign for line in part] for part in parts])
    return TaskRow(
        prompt="".join(f"{lines}show v{last} % {_MODULUS}\n" for lines, last, _ in asked),
        answer=str(asked[-1][2]),
        verifier=ToolSums.verifier,
        metadata={"parts": [[[line.sign, line.number, line.word] for line in part] for part in parts]},
    )


def _read_parts(parts: Sequence[Sequence[Sequence[object]]]) -> list[Part]:
    return [tuple(SumLine(*line) for line in part) for part in parts]  # type: ignore[arg-type]  # they are as `_row` wrote them


def _written(parts: Sequence[Part], signs: Sequence[Sequence[str]]) -> list[tuple[str, int, int]]:
    """For each part its lines with these signs, the place of its last line, and that line's value modulo 100."""
    written, place, value = [], 0, 0
    for part, read in zip(parts, signs, strict=True):
        lines = ""
        for line, sign in zip(part, read, strict=True):
            lines += f"{line.text(place, sign)}\n"
            value = line.value(value, sign)
            place += 1
        written.append((lines, place - 1, value % _MODULUS))
    return written


def _worked(parts: Sequence[Part], rng: random.Random, misread: float, direct: float) -> tuple[tuple[str, str], ...]:
    def read(sign: str) -> str:
        return "+" if sign == "-" and rng.random() < misread else sign

    written = _written(parts, [[read(line.sign) for line in part] for part in parts])
    answer = (f"<answer>{written[-1][2]}</answer>", "")
    if rng.random() < direct:
        return (answer,)
    calls = [(f"```python\n{lines}print( v{last} % {_MODULUS} )\n```", f"{value}\n") for lines, last, value in written]
    return (*calls, answer)


TOOL_SUMS = ToolSums("tool-sums", max_parts=4, exponent=1.6, warm_exponent=1.2, worded=0.35, misread=0.6, direct=0.05)
"""The task ``tool-sums``."""
