"""Keeps quantiles and means true while the policy changes, without touching the order. Pure.

As a policy learns, its responses to all prompts become longer or shorter, while which are the longest changes little (StreamRL,
section 5.2). So an update also learns by which factors what was predicted is off on recent examples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tailrace.ranker.censoring import quantiles
from tailrace.ranker.example import Example
from tailrace.ranker.prediction import Prediction

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
