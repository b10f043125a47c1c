"""Whether predictions have drifted, which examples are recent, and factors that keep quantiles and means true meanwhile. Pure.

As a policy learns, its responses to all prompts become longer or shorter, while which are the longest changes little (StreamRL,
section 5.2). So an update also learns by which factors what was predicted is off on recent examples.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tailrace.ranker.censoring import quantiles
from tailrace.ranker.example import Example
from tailrace.ranker.prediction import Prediction
from tailrace.ranker.recall import tail_count

TARGET_COVERAGE = 0.9
_COVERAGE_BAND = 0.05
_RECALL_BAND = 0.05
_ERRORS = 2.0  # standard errors that are still chance
WINDOW_PROMPTS = 500
"""Prompts from which a small update learns: older examples fill it up."""


@dataclass(frozen=True, slots=True)
class Band:
    """Where recall and coverage are expected: as at training, up to 0.05 and twice the standard error.

    Args:
        recall20, coverage90: on the prompts held back in training, and on those after it that were inside (`with_figures`).
        prompts: how many those were.
    """

    recall20: float
    coverage90: float
    prompts: int

    def left_by(self, recall20: float, coverage90: float, prompts: int) -> bool:
        """Whether these figures, on so many prompts, are outside: recall too low, or coverage too far from 0.9.

        Coverage may also be as far from 0.9 as it was in training. Samples of one prompt depend on each other, so prompts are
        what is counted.
        """
        tail, trained_tail = tail_count(prompts, 0.2), tail_count(self.prompts, 0.2)
        chance = _ERRORS * math.sqrt(0.25 / tail + 0.25 / trained_tail)
        if recall20 < self.recall20 - _RECALL_BAND - chance:
            return True
        chance = _ERRORS * math.sqrt(TARGET_COVERAGE * (1 - TARGET_COVERAGE) / prompts)
        room = max(_COVERAGE_BAND, abs(self.coverage90 - TARGET_COVERAGE)) + chance
        return abs(coverage90 - TARGET_COVERAGE) > room

    def with_figures(self, recall20: float, coverage90: float, prompts: int) -> Band:
        """The band with further prompts: by few that were held back, nearly any recall is within two standard errors."""
        both = self.prompts + prompts
        return Band(
            (self.recall20 * self.prompts + recall20 * prompts) / both,
            (self.coverage90 * self.prompts + coverage90 * prompts) / both,
            both,
        )


def recent(new: Sequence[Example], older: Sequence[Example]) -> tuple[Example, ...]:
    """The new examples, and before them as many of the older ones, the latest, as fill up `WINDOW_PROMPTS` prompts.

    A prompt's older examples leave when it has a new one, which has all its samples.
    """
    fresh = {example.prompt for example in new}
    return (*latest([example for example in older if example.prompt not in fresh], WINDOW_PROMPTS - len(fresh)), *new)


def latest(examples: Sequence[Example], prompts: int = WINDOW_PROMPTS) -> tuple[Example, ...]:
    """The examples of the last so many different prompts."""
    last = dict.fromkeys(example.prompt for example in reversed(examples))
    kept = set(list(last)[: max(0, prompts)])
    return tuple(example for example in examples if example.prompt in kept)


LEAST_SAMPLES = 50  # the standard error of a p90 is then 4 % of the samples


@dataclass(frozen=True, slots=True)
class Correction:
    """Factors of p50, p90 and the score, each above 0."""

    p50: float = 1.0
    p90: float = 1.0
    score: float = 1.0

    def __call__(self, prediction: Prediction) -> Prediction:
        """The prediction corrected; quantiles of at least one token, and in their order."""
        p50 = max(1.0, prediction.p50 * self.p50)
        return Prediction(p50, max(p50, prediction.p90 * self.p90), prediction.score * self.score)


def has_enough(examples: Sequence[Example]) -> bool:
    """Whether there are enough samples to correct quantiles by."""
    return sum(len(example.lengths) for example in examples) >= LEAST_SAMPLES


def correction_of(predictions: Sequence[Prediction], examples: Sequence[Example]) -> Correction:
    """The factors with which half of these samples are within p50, nine tenths within p90, and scores sum to their tokens.

    A method whose scores sum to nothing, or less, keeps them.

    Args:
        predictions: not corrected, one for each example.
        examples: at least one, see `has_enough`.
    """
    pairs = list(zip(predictions, examples, strict=True))
    (half,) = quantiles([(length / one.p50, cut) for one, example in pairs for length, cut in example.samples], (0.5,))
    (most,) = quantiles([(length / one.p90, cut) for one, example in pairs for length, cut in example.samples], (0.9,))
    tokens = sum(sum(example.lengths) for _, example in pairs)
    scores = sum(one.score * len(example.lengths) for one, example in pairs)
    return Correction(half, most, tokens / scores if scores > 0 else 1.0)
