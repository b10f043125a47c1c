"""Chained sums of one-digit numbers, from reasoning-gym's generator, with a number of terms that has a long tail.

The worked answer takes one step per operator, so response lengths have the tail of the number of terms.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tailrace.reward.errors import TooFewQuestionsError
from tailrace.reward.gym import import_reasoning_gym
from tailrace.reward.tasks.demonstrations import Demonstration, worked
from tailrace.reward.tasks.rows import Row, Split, split_of

_PATIENCE = 2_000  # draws in a row without a new held-out question: then there are no more


@dataclass(frozen=True, slots=True)
class ChainSum:
    """A distribution over chained sums.

    Args:
        name: the task's name.
        min_terms: fewest terms, at least 2.
        max_terms: most terms.
        exponent: the number of terms n is drawn with probability proportional to (n - min_terms + 1) ** -exponent.
        warm_exponent: the same for `warm_start`, smaller, so that long questions are shown more often than asked.
        misread: default probability that a demonstration reads a minus sign as a plus sign, at each one anew.
    """

    name: str
    min_terms: int
    max_terms: int
    exponent: float
    warm_exponent: float
    misread: float

    forced_prefix = "<think>"
    """What a response starts with when it works the answer out: forcing it is the control for a gain in style only."""

    def __post_init__(self) -> None:
        if not 2 <= self.min_terms <= self.max_terms:
            raise ValueError(f"found {self.min_terms} to {self.max_terms} terms, expected 2 <= min_terms <= max_terms")

    def generate(self, split: Split, size: int, seed: int) -> list[Row]:
        """Rows of one split. The same arguments give the same rows.

        Training rows are independent draws, so short questions repeat; held-out rows are distinct. A question's text decides
        its split, so no held-out question is ever in a training set, whatever the sizes and seeds.

        Raises:
            MissingExtraError: reasoning-gym is not installed.
            TooFewQuestionsError: the task has not so many distinct held-out questions.
        """
        if split == "train":
            return list(itertools.islice(self._stream(split, seed, self.exponent), size))
        rows: dict[str, Row] = {}
        misses = 0
        for row in self._stream(split, seed, self.exponent):
            if len(rows) == size:
                break
            misses = misses + 1 if row["prompt"] in rows else 0
            if misses == _PATIENCE:
                raise TooFewQuestionsError(
                    f"found {len(rows)} distinct held-out questions of {self.name!r}, expected {size}; ask for fewer"
                )
            rows.setdefault(row["prompt"], row)
        return list(rows.values())

    def demonstrations(self, rows: Sequence[Row], seed: int, misread: float | None = None) -> list[Demonstration]:
        """A worked response to each row's prompt, by a demonstrator who takes minus signs for plus signs.

        Args:
            rows: rows of this task.
            seed: decides which signs are misread.
            misread: probability of it at each minus sign; 0 makes every demonstration right; None is the task's default.
        """
        probability = self.misread if misread is None else misread
        if not 0 <= probability <= 1:
            raise ValueError(f"found misread={probability}, expected a probability")
        rng = random.Random(f"{self.name}/demonstrations/{seed}")
        return [(row["prompt"], worked(row["metadata"]["entry"]["expression"], rng, probability)) for row in rows]

    def warm_start(self, size: int, seed: int, misread: float | None = None) -> list[Demonstration]:
        """Demonstrations for supervised fine-tuning before RL: of training questions, with a flatter tail than is asked.

        Args:
            size: how many.
            seed: decides the questions and which signs are misread.
            misread: as in `demonstrations`.

        Raises:
            MissingExtraError: reasoning-gym is not installed.
        """
        rows = list(itertools.islice(self._stream("train", seed, self.warm_exponent), size))
        return self.demonstrations(rows, seed, misread)

    def _stream(self, split: Split, seed: int, exponent: float) -> Iterator[Row]:
        rng = random.Random(f"{self.name}/{split}/{seed}")
        terms = range(self.min_terms, self.max_terms + 1)
        weights = [(n - self.min_terms + 1) ** -exponent for n in terms]
        # One reasoning-gym dataset for each number of terms: its items are drawn by index, so nothing is generated in vain.
        items = {n: _items(n, rng.getrandbits(48)) for n in terms}
        while True:
            for n in rng.choices(terms, weights, k=256):
                row = next(items[n])
                if split_of(row["prompt"]) == split:
                    yield row


def _items(terms: int, seed: int) -> Iterator[Row]:
    dataset = import_reasoning_gym().create_dataset(
        "chain_sum", min_terms=terms, max_terms=terms, min_digits=1, max_digits=1, seed=seed, size=2**31
    )
    for index in itertools.count():
        item = dataset[index]
        yield Row(
            prompt=item["question"],
            answer=item["answer"],
            verifier="reasoning-gym",
            metadata={
                "dataset": "chain_sum",
                "entry": {"num_terms": terms, "expression": item["metadata"]["expression"]},
            },
        )
