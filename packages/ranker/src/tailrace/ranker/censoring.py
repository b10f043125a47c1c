"""Lengths of which some are only known to be longer than where they were cut. Pure; standard library only.

A truncated response is censored on the right: its length lies somewhere above what was recorded. To leave it out, or to take
the cut for the end, makes the tail too short.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby

from tailrace.ranker.example import Example

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
