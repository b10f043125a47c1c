"""Draws a task's questions: lengths from a truncated Zipf law, and rows of one split."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass

from tailrace.reward.errors import TooFewQuestionsError
from tailrace.reward.tasks.protocol import Split, TaskRow, split_of

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
    """
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
