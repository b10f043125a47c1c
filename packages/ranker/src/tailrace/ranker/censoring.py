"""Quantiles and means of lengths, some only known to be longer than where they were cut. Pure; standard library only.

A truncated response is censored on the right: its length lies somewhere above what was recorded. To leave it out, or to take
the cut for the end, makes the tail too short.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from tailrace.ranker.errors import DamagedRankerError
from tailrace.ranker.example import Example
from tailrace.ranker.prediction import Prediction

_MOST_BINS = 20
_LEAST_SAMPLES = 40  # in a bin: the standard error of its p90 is then 5 % of the samples

Sample = tuple[int, bool]
"""A response's tokens, and whether it was truncated."""

Measured = tuple[float, bool]
"""A number that grows with the length, and whether it was cut."""


def all_samples(examples: Iterable[Example]) -> list[Sample]:
    """The samples of all examples."""
    return [sample for example in examples for sample in example.samples]


def quantiles(samples: Iterable[Measured], shares: Sequence[float] = (0.5, 0.9)) -> tuple[float, ...]:
    """Quantiles of the lengths by the estimator of Kaplan and Meier (JASA 53, 1958), in tokens.

    Where the curve does not come down to a quantile, since most of what is long was truncated, the result is the longest
    length recorded: nothing is said about what was never seen.

    Args:
        samples: at least one.
        shares: in (0, 1), increasing.
    """
    ordered = sorted(samples)
    found: list[float] = []
    surviving, at_risk = 1.0, len(ordered)
    for length, same in groupby(ordered, key=lambda sample: sample[0]):
        cuts = [truncated for _, truncated in same]
        surviving *= 1.0 - (len(cuts) - sum(cuts)) / at_risk
        at_risk -= len(cuts)
        while len(found) < len(shares) and surviving <= 1.0 - shares[len(found)] + 1e-12:
            found.append(float(length))
    return tuple(found + [float(ordered[-1][0])] * (len(shares) - len(found)))


def mean_tokens(samples: Iterable[Sample]) -> float:
    """The mean length by the same estimator, in tokens: the area below the curve, up to the longest length recorded.

    So a limit on tokens, at which all responses are cut that reach it, gives the mean of what is generated under it.

    Args:
        samples: at least one.
    """
    ordered = sorted(samples)
    surviving, at_risk, area, before = 1.0, len(ordered), 0.0, 0
    for length, same in groupby(ordered, key=lambda sample: sample[0]):
        cuts = [truncated for _, truncated in same]
        area += surviving * (length - before)
        surviving *= 1.0 - (len(cuts) - sum(cuts)) / at_risk
        at_risk, before = at_risk - len(cuts), length
    return area


@dataclass(frozen=True, slots=True)
class QuantilesByScore:
    """A p50 and a p90 for each of some scores, with straight lines between them; for methods that only order prompts.

    Args:
        points: (score, p50, p90) with rising scores, at least one.
    """

    points: tuple[tuple[float, float, float], ...]

    @classmethod
    def fit(cls, scores: Sequence[float], samples: Sequence[Sequence[Sample]]) -> QuantilesByScore:
        """Bins of similar scores, and in each the quantiles of its samples (`quantiles`).

        Args:
            scores: one for each prompt, at least one.
            samples: the samples of each.
        """
        order = sorted(range(len(scores)), key=lambda at: scores[at])
        total = sum(map(len, samples))
        enough = max(_LEAST_SAMPLES, total // _MOST_BINS)
        bins: list[list[int]] = [[]]
        size = 0
        for at in order:
            if size >= enough and scores[at] != scores[bins[-1][-1]]:
                bins.append([])
                size = 0
            bins[-1].append(at)
            size += len(samples[at])
        if size < enough and len(bins) > 1:
            last = bins.pop()
            bins[-1] += last
        points = []
        for members in bins:
            middle = sum(scores[at] for at in members) / len(members)
            p50, p90 = quantiles([sample for at in members for sample in samples[at]])
            points.append((middle, p50, p90))
        return cls(tuple(points))

    def __call__(self, score: float) -> Prediction:
        """The prediction for a score; outside the known ones that of the nearest."""
        at = bisect_right(self.points, score, key=lambda point: point[0])
        if at in (0, len(self.points)):
            _, p50, p90 = self.points[max(0, at - 1)]
            return Prediction(p50, p90, score)
        (low, low50, low90), (high, high50, high90) = self.points[at - 1 : at + 1]
        part = (score - low) / (high - low)
        p50 = low50 + part * (high50 - low50)
        return Prediction(p50, max(p50, low90 + part * (high90 - low90)), score)

    @classmethod
    def from_json(cls, value: Any) -> QuantilesByScore:
        """Read what `points` becomes in JSON.

        Raises:
            DamagedRankerError: it is something else.
        """
        try:
            points = tuple((float(score), float(p50), float(p90)) for score, p50, p90 in value)
        except (TypeError, ValueError) as error:
            raise DamagedRankerError(f"found quantiles that are none ({error}), expected score, p50, p90") from error
        if not points:
            raise DamagedRankerError("found no quantiles, expected at least one score with its p50 and p90")
        return cls(points)
