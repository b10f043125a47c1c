"""What every generated task offers: rows that are drawn, splits by question, demonstrations with a chosen rate of errors."""

from __future__ import annotations

import hashlib
import itertools
import json
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, TypedDict, get_args

from tailrace.contracts import expected_one_of
from tailrace.reward.errors import SettingsError, TooFewQuestionsError

Split = Literal["train", "heldout"]

_HELDOUT_SHARE = 10  # one question text in ten


class TaskRow(TypedDict):
    """One prompt with the answer, verifier and metadata to score its responses."""

    prompt: str
    answer: str
    verifier: str
    metadata: dict[str, Any]


def split_of(question: str) -> Split:
    """The split of a question, by a hash of its text, so that splits never overlap, whatever their sizes and seeds."""
    digest = hashlib.blake2b(question.encode(), digest_size=8).digest()
    return "heldout" if int.from_bytes(digest) % _HELDOUT_SHARE == 0 else "train"


def write_jsonl(path: str | Path, rows: Iterable[Mapping[str, Any]]) -> int:
    """Write one JSON object per line and replace the file at once. Returns the number of rows."""
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(target.name + ".partial")
    count = 0
    with partial.open("w", encoding="utf-8") as file:
        for row in rows:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
            count += 1
    partial.replace(target)
    return count


Demonstration = tuple[str, str | Sequence[str]]
"""A prompt and its response: a text, or turns and what an environment answered, one after the other, beginning with a turn."""


def worked(expression: str, rng: random.Random, misread: float) -> str:
    """A response that works the expression out step by step; its only errors are minus signs misread as plus signs.

    ``7 - 2 + 5`` becomes ``<think> 7 - 2 = 5 + 5 = 10</think><answer> 10</answer>``. With its sign misread it becomes
    ``<think> 7 + 2 = 9 + 5 = 14</think><answer> 14</answer>``; the arithmetic after the misreading is always right.

    Args:
        expression: one-digit terms with ``+`` and ``-`` between them, separated by spaces.
        rng: decides which signs are misread.
        misread: probability of misreading, drawn for each minus sign.
    """
    first, *rest = expression.split()
    total = int(first)
    steps = [first]
    for sign, term in zip(rest[::2], rest[1::2], strict=True):
        read = "+" if sign == "-" and rng.random() < misread else sign
        total = total + int(term) if read == "+" else total - int(term)
        steps += [read, term, "=", str(total)]
    # A space before every number and operator and nowhere else, so that a tokenizer needs only one token for each.
    return f"<think> {' '.join(steps)}</think><answer> {total}</answer>"


class GeneratedTask(Protocol):
    """A distribution over questions, with demonstrations of mixed quality."""

    @property
    def name(self) -> str:
        """The task's name."""
        ...

    @property
    def verifier(self) -> str:
        """The verifier of its rows."""
        ...

    @property
    def environment(self) -> str:
        """The environment that answers its responses, a plugin of `tailrace.environment`; empty: a response is one turn."""
        ...

    @property
    def no_tool_prefix(self) -> str:
        """The beginning of a response that does without the environment, for a control; empty where there is none."""
        ...

    @property
    def forced_prefix(self) -> str:
        """The beginning of a response in the demonstrations' style. Forcing it in an evaluation shows a gain in style."""
        ...

    def generate(self, split: Split, size: int, seed: int) -> list[TaskRow]:
        """Rows of one split. The same arguments give the same rows.

        Training rows are independent draws, so short questions repeat; held-out rows are distinct. A question's text decides
        its split, so no held-out question is ever in a training set, whatever the sizes and seeds.

        Raises:
            TooFewQuestionsError: the task has fewer distinct held-out questions than `size`.
        """
        ...

    def demonstrations(self, rows: Sequence[TaskRow], seed: int, misread: float | None = None) -> list[Demonstration]:
        """A response to each row's prompt, in which some minus signs are misread as plus signs.

        Args:
            rows: rows of this task.
            seed: decides which are misread.
            misread: probability of misreading each; 0 makes every demonstration right; None: the task's default.
        """
        ...

    def warm_start(self, size: int, seed: int, misread: float | None = None) -> list[Demonstration]:
        """Demonstrations of training questions, for supervised fine-tuning before RL.

        Args:
            size: number of demonstrations.
            seed: decides the questions and which signs are misread.
            misread: as in `demonstrations`.
        """
        ...


# Draws a task's questions: lengths from a truncated Zipf law, and rows of one split.

_PATIENCE = 2_000  # draws without a new held-out question after which there are no more


@dataclass(frozen=True, slots=True)
class ZipfLengths:
    """Lengths n from `fewest` to `most` with probability proportional to (n - fewest + 1) ** -exponent."""

    fewest: int
    most: int
    exponent: float

    def draw(self, rng: random.Random) -> Iterator[int]:
        """Lengths without end."""
        lengths = range(self.fewest, self.most + 1)
        weights = [(n - self.fewest + 1) ** -self.exponent for n in lengths]
        while True:
            yield from rng.choices(lengths, weights, k=256)


def take_rows(task: str, split: Split, size: int, draws: Iterator[TaskRow]) -> list[TaskRow]:
    """The first rows of the split: training rows as they are drawn, held-out rows if they are new.

    Raises:
        TooFewQuestionsError: `draws` gives fewer distinct held-out questions than `size`.
        SettingsError: there is no such split, or the size is no whole number of at least 0.
    """
    if split not in get_args(Split):
        raise SettingsError(f"found the split {split!r} of {task!r}, {expected_one_of(split, get_args(Split))}")
    if not isinstance(size, int) or size < 0:
        raise SettingsError(f"found a size of {size!r} of {task!r}, expected a whole number of at least 0")
    rows = (row for row in draws if split_of(row["prompt"]) == split)
    if split == "train":
        return list(itertools.islice(rows, size))
    found: dict[str, TaskRow] = {}
    misses = 0
    while len(found) < size:
        row = next(rows)
        misses = misses + 1 if row["prompt"] in found else 0
        if misses == _PATIENCE:
            raise TooFewQuestionsError(
                f"found {len(found)} distinct held-out questions of {task!r}, expected {size}; ask for fewer"
            )
        found.setdefault(row["prompt"], row)
    return list(found.values())


def checked_probability(name: str, value: float) -> float:
    """The value.

    Raises:
        ValueError: it is no probability.
    """
    if not 0 <= value <= 1:
        raise ValueError(f"found {name}={value}, expected a probability")
    return value
