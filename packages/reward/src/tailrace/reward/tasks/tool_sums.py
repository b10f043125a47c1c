"""Sums and counts of letters over several lines, too long for a small model's head: a Python tool computes each line.

    a = 48 - 7 - count q in w q e q
    b = a + 93 - 15
    What is b % 100 ?

A worked response takes one turn for each line. The tool prints the value so far, and the last turn gives it as the answer. The
demonstrator takes minus signs for plus signs, at each sign anew, and sometimes answers at once from the head, which is a guess.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tailrace.reward.tasks.demonstrations import Demonstration
from tailrace.reward.tasks.drawing import ZipfLengths, checked_probability, take_rows
from tailrace.reward.tasks.rows import Split, TaskRow

_LABELS = "abcdef"
_LETTERS = "pqrstuvw"
_NUMBERS = range(1, 100)
_TERMS = range(2, 5)  # of a line, after its first number
_COUNTED = range(4, 9)  # letters of a count
_MODULUS = 100
TURN_END = "<|endoftext|>"
"""What ends a turn in a transcript: the end token of the small model's tokenizer."""


@dataclass(frozen=True, slots=True)
class Term:
    """A number, or a count of a letter.

    Args:
        sign: ``+`` or ``-``.
        number: the number; unused for a count.
        letter: the letter that is counted; empty for a number.
        letters: the letters in which it is counted.
    """

    sign: str
    number: int = 0
    letter: str = ""
    letters: str = ""

    @property
    def value(self) -> int:
        """The value without its sign."""
        return self.letters.count(self.letter) if self.letter else self.number

    def asked(self) -> str:
        """The words of the question."""
        what = f"count {self.letter} in {' '.join(self.letters)}" if self.letter else str(self.number)
        return f" {self.sign} {what}"

    def written(self, sign: str) -> str:
        """The same in Python, with a sign that may be misread."""
        if not self.letter:
            return f" {sign} {self.number}"
        return f' {sign} " {" ".join(self.letters)} ".count( "{self.letter}" )'


@dataclass(frozen=True, slots=True)
class Transcript:
    """A demonstration of several turns.

    Args:
        prompt: the question.
        turns: the demonstrator's turns, each with what the tool answers; nothing after the last.
    """

    prompt: str
    turns: tuple[tuple[str, str], ...]

    def pairs(self) -> Iterator[Demonstration]:
        """A pair for each turn: everything before it, and the turn."""
        before = self.prompt
        for turn, observation in self.turns:
            yield before, turn
            before += turn + TURN_END + observation


Line = tuple[str, tuple[Term, ...]]
"""What a line begins with, a number or the line before, and its terms."""


@dataclass(frozen=True, slots=True)
class ToolSums:
    """A distribution over such questions.

    Args:
        name: the task's name.
        max_lines: most lines, from 1 to 6.
        exponent: the number of lines n is drawn with probability proportional to n ** -exponent.
        warm_exponent: the exponent for `warm_start`; a smaller one shows long questions more often than training asks them.
        counted: probability that a line ends with a count of letters.
        misread: default probability that a demonstration reads a minus sign as a plus sign, drawn for each sign.
        direct: probability that a demonstration answers at once, without the tool.
    """

    name: str
    max_lines: int
    exponent: float
    warm_exponent: float
    counted: float
    misread: float
    direct: float

    verifier = "exact"
    """The verifier of its rows: only an answer counts that is given as one, not a value that the tool printed."""

    environment = "python"
    """The environment that computes."""

    forced_prefix = "```python\na = "
    """The beginning of a response that uses the tool. An evaluation that forces it shows a gain in style alone."""

    no_tool_prefix = "<answer>"
    """The beginning of a response that answers from the head."""

    def __post_init__(self) -> None:
        if not 1 <= self.max_lines <= len(_LABELS):
            raise ValueError(f"found {self.max_lines} lines, expected 1 to {len(_LABELS)}")

    def generate(self, split: Split, size: int, seed: int) -> list[TaskRow]:
        """Rows of one split; see `GeneratedTask`."""
        rows = (_row(lines) for lines in self._draws(split, seed, self.exponent))
        return take_rows(self.name, split, size, rows)

    def demonstrations(self, rows: Sequence[TaskRow], seed: int, misread: float | None = None) -> list[Demonstration]:
        """A pair for each turn of `transcripts`: what stands before it, the tool's answers included, and the turn."""
        return [pair for transcript in self.transcripts(rows, seed, misread) for pair in transcript.pairs()]

    def transcripts(self, rows: Sequence[TaskRow], seed: int, misread: float | None = None) -> list[Transcript]:
        """A worked conversation for each row, some minus signs misread.

        With ``misread=0`` none answers from the head either.

        Raises:
            KeyError, ValueError: a row is not of this task.
        """
        probability = checked_probability("misread", self.misread if misread is None else misread)
        direct = self.direct if probability else 0.0
        rng = random.Random(f"{self.name}/demonstrations/{seed}")
        return [
            Transcript(row["prompt"], _worked(_read_lines(row["metadata"]["lines"]), rng, probability, direct))
            for row in rows
        ]

    def warm_start(self, size: int, seed: int, misread: float | None = None) -> list[Demonstration]:
        """Turns of demonstrations of training questions, whose numbers of lines follow `warm_exponent`; see `GeneratedTask`."""
        drawn = (_row(lines) for lines in self._draws("train", seed, self.warm_exponent))
        rows = take_rows(self.name, "train", size, drawn)  # more than are needed: each has several turns
        return self.demonstrations(rows, seed, misread)[:size]

    def _draws(self, split: Split, seed: int, exponent: float) -> Iterator[tuple[Line, ...]]:
        rng = random.Random(f"{self.name}/{split}/{seed}")
        for count in ZipfLengths(1, self.max_lines, exponent).draw(rng):
            firsts = [str(rng.choice(_NUMBERS)), *_LABELS[: count - 1]]
            yield tuple((first, tuple(self._terms(rng))) for first in firsts)

    def _terms(self, rng: random.Random) -> Iterator[Term]:
        count = rng.choice(_TERMS)
        counted = rng.random() < self.counted
        for _ in range(count - counted):
            yield Term(rng.choice("+-"), rng.choice(_NUMBERS))
        if counted:
            letters = rng.choices(_LETTERS, k=rng.choice(_COUNTED))
            yield Term(rng.choice("+-"), 0, rng.choice(letters), "".join(letters))


def _row(lines: Sequence[Line]) -> TaskRow:
    asked = [
        f"{label} = {first}{''.join(map(Term.asked, terms))}"
        for label, (first, terms) in zip(_LABELS, lines, strict=False)
    ]
    return TaskRow(
        prompt="\n".join([*asked, f"What is {_LABELS[len(lines) - 1]} % {_MODULUS} ?\n"]),
        answer=str(_values(lines, [[term.sign for term in terms] for _, terms in lines])[-1]),
        verifier=ToolSums.verifier,
        metadata={
            "lines": [[first, [[t.sign, t.number, t.letter, t.letters] for t in terms]] for first, terms in lines]
        },
    )


def _read_lines(lines: Sequence[Sequence[object]]) -> list[Line]:
    return [(str(first), tuple(Term(*term) for term in terms)) for first, terms in lines]  # type: ignore[attr-defined]


def _values(lines: Sequence[Line], signs: Sequence[Sequence[str]]) -> list[int]:
    """What each line's variable is, modulo 100."""
    values, total = [], 0
    for place, ((first, terms), read) in enumerate(zip(lines, signs, strict=True)):
        total = total if place else int(first)
        total += sum(term.value if sign == "+" else -term.value for term, sign in zip(terms, read, strict=True))
        values.append(total % _MODULUS)
    return values


def _worked(lines: Sequence[Line], rng: random.Random, misread: float, direct: float) -> tuple[tuple[str, str], ...]:
    def read(sign: str) -> str:
        return "+" if sign == "-" and rng.random() < misread else sign

    signs = [[read(term.sign) for term in terms] for _, terms in lines]
    values = _values(lines, signs)
    answer = (f"<answer>{values[-1]}</answer>", "")
    if rng.random() < direct:
        return (answer,)
    turns = []
    for label, (first, terms), read_signs, value in zip(_LABELS, lines, signs, values, strict=False):
        code = "".join(term.written(sign) for term, sign in zip(terms, read_signs, strict=True))
        turns.append((f"```python\n{label} = {first}{code}\nprint( {label} % {_MODULUS} )\n```", f"{value}\n"))
    return (*turns, answer)


TOOL_SUMS = ToolSums("tool-sums", max_lines=6, exponent=1.2, warm_exponent=0.6, counted=0.3, misread=0.6, direct=0.15)
"""The task ``tool-sums``."""
