"""A predicted length."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tailrace.ranker.errors import PredictionError


@dataclass(frozen=True, slots=True)
class Prediction:
    """How long the responses to a prompt will be.

    Args:
        p50: tokens that half of them do not exceed, at least 1.
        p90: tokens that nine of ten do not exceed, at least `p50`.
        score: tokens of a response on average, as far as the method knows. Prompts are ranked by it, the longest highest: by
            `LengthRanker.rank`, by recall and so by ``auto`` and the judgement of drift, and by a run's routing. For longest
            first by the mean is what keeps batches short where lengths are known as distributions only (Bruno, Downey and
            Frederickson, JACM 28, 1981, for exponential ones), and means of several responses add up.

    Raises:
        PredictionError: a value is not finite or outside its range.
    """

    p50: float
    p90: float
    score: float

    def __post_init__(self) -> None:
        if not all(map(math.isfinite, (self.p50, self.p90, self.score))):
            raise PredictionError(
                f"found p50 {self.p50}, p90 {self.p90} and score {self.score}, expected finite numbers"
            )
        if not 1 <= self.p50 <= self.p90:
            raise PredictionError(f"found p50 {self.p50} and p90 {self.p90} tokens, expected 1 <= p50 <= p90")


def ranked(predictions: list[Prediction]) -> list[int]:
    """Positions in the order of their scores, longest first; equal scores keep their order."""
    return sorted(range(len(predictions)), key=lambda at: -predictions[at].score)
