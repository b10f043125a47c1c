"""Lengths of which some are only known to be longer than where they were cut. Pure; standard library only.

A truncated response is censored on the right: its length lies somewhere above what was recorded. To leave it out, or to take
the cut for the end, makes the tail too short.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
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


def mean_ranks(examples: Sequence[Example]) -> list[float]:
    """For each prompt the mean rank of its samples among all, between 0 (shortest) and 1.

    A sample's rank is the part of the others that are known to be shorter, plus half of those of which that is not known: of
    the same length, or one of the two truncated before the other's length.
    """
    samples = all_samples(examples)
    ended = sorted(length for length, truncated in samples if not truncated)
    cut = sorted(length for length, truncated in samples if truncated)

    def rank(length: int, truncated: bool) -> float:
        if truncated:  # longer than what ended up to here; of the rest nothing is known
            shorter = bisect_right(ended, length)
            return (shorter + (len(samples) - 1 - shorter) / 2) / max(1, len(samples) - 1)
        shorter, same = bisect_left(ended, length), bisect_right(ended, length) - bisect_left(ended, length) - 1
        unknown = bisect_left(cut, length)  # truncated before: it may have become longer or not
        return (shorter + (same + unknown) / 2) / max(1, len(samples) - 1)

    return [sum(rank(*sample) for sample in example.samples) / len(example.lengths) for example in examples]
