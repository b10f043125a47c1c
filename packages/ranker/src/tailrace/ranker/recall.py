"""How well scores find the longest: recall with ties by expectation, and Kendall's tau-b. Pure; standard library only."""

from __future__ import annotations

import math
from bisect import bisect_right, insort
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction

from tailrace.ranker.errors import MeasureError


def recall(scores: Sequence[float], lengths: Sequence[int], share: float) -> float:
    """Share of the ceil(share * n) longest that is among as many with the highest scores (StreamRL, Table 4).

    Where several are tied at a cut, each is inside with the same probability, and the result is the expectation: constant
    scores give k/n, whatever the order of the rows. Scores and lengths are those of trajectories; those of one prompt have
    one score.

    Args:
        scores: [n], higher for what is to be longer.
        lengths: [n], tokens.
        share: in (0, 1].

    Raises:
        MeasureError: there are none, not as many scores as lengths, a score is no number, or the share is outside its range.
    """
    _check(scores, lengths)
    count = tail_count(len(scores), share)
    found = zip(_inside(scores, count), _inside(lengths, count), strict=True)
    return math.fsum(chosen * long for chosen, long in found) / count


def tail_count(count: int, share: float) -> int:
    """ceil(share * count), for the decimal number that was written: 0.07 of 100 are 7, not 8.

    Raises:
        MeasureError: the share is not in (0, 1].
    """
    if not 0 < share <= 1:
        raise MeasureError(f"found a share of {share!r}, expected more than 0 and at most 1")
    return math.ceil(Fraction(repr(float(share))) * count)


def tau_b(scores: Sequence[float], lengths: Sequence[float]) -> float:
    """Kendall's tau-b in O(n log n) comparisons (Knight, JASA 61, 1966): 1 the same order, -1 the reverse.

    Pairs that are tied in one of both count in the denominator only. If all are tied in one, there is no order to agree with,
    and the result is 0.

    Raises:
        MeasureError: as of `recall`.
    """
    _check(scores, lengths)
    pairs = sorted(zip(scores, lengths, strict=True))
    total = math.comb(len(pairs), 2)
    tied_scores = _tied(scores)
    tied_lengths = _tied(lengths)
    tied_both = sum(math.comb(count, 2) for count in Counter(pairs).values())
    free = (total - tied_scores) * (total - tied_lengths)
    if free == 0:
        return 0.0
    discordant = 0
    seen: list[float] = []  # lengths of lower scores, sorted; within a tie lengths rise, so that none is counted
    for at, (_, length) in enumerate(pairs):
        discordant += at - bisect_right(seen, length)
        insort(seen, length)
    concordant = total - tied_scores - tied_lengths + tied_both - discordant
    return (concordant - discordant) / math.sqrt(free)


def _inside(values: Sequence[float], count: int) -> list[float]:
    """The probability of each to be among the `count` highest, ties broken evenly."""
    cut = sorted(values, reverse=True)[count - 1]
    above = sum(value > cut for value in values)
    tied = sum(value == cut for value in values)
    at_cut = (count - above) / tied
    return [1.0 if value > cut else at_cut if value == cut else 0.0 for value in values]


def _tied(values: Sequence[float]) -> int:
    return sum(math.comb(count, 2) for count in Counter(values).values())


def _check(scores: Sequence[float], lengths: Sequence[float]) -> None:
    if len(scores) != len(lengths):
        raise MeasureError(f"found {len(scores)} scores and {len(lengths)} lengths, expected as many")
    if not scores:
        raise MeasureError("found no scores, expected at least one")
    if any(math.isnan(value) for value in (*scores, *lengths)):
        raise MeasureError("found a score that is no number, expected numbers")
