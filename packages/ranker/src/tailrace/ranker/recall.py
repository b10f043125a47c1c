"""How good predictions are: recall of the longest with ties by expectation, Kendall's tau-b, coverage. No dependency."""

from __future__ import annotations

import math
import random
from bisect import bisect_right, insort
from collections import Counter
from collections.abc import Mapping, Sequence
from fractions import Fraction
from operator import mul
from statistics import fmean
from typing import Any

from tailrace.ranker.errors import MeasureError
from tailrace.ranker.example import Example
from tailrace.ranker.prediction import Prediction
from tailrace.ranker.splits import halves


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
    return math.fsum(map(mul, _inside(scores, count), _inside(lengths, count))) / count


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
    # Equal numbers of a tensor differ in their hash.
    scores, lengths = list(map(float, scores)), list(map(float, lengths))
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
    falling = sorted(values, reverse=True)
    cut = falling[count - 1]
    above, tied = falling.index(cut), falling.count(cut)
    at_cut = (count - above) / tied
    return [1.0 if value > cut else at_cut if value == cut else 0.0 for value in values]


def _tied(values: Sequence[float]) -> int:
    return sum(math.comb(count, 2) for count in Counter(values).values())


def _check(scores: Sequence[float], lengths: Sequence[float]) -> None:
    if len(scores) != len(lengths):
        raise MeasureError(f"found {len(scores)} scores and {len(lengths)} lengths, expected as many")
    if not len(scores):
        raise MeasureError("found no scores, expected at least one")
    if any(map(math.isnan, scores)) or any(map(math.isnan, lengths)):
        raise MeasureError("found a score that is no number, expected numbers")


SHARES = {"recall20": 0.2, "recall10": 0.1, "recall5": 0.05}
"""The tails of StreamRL, Table 4."""
_SPLITS = 4


def measure(predictions: Sequence[Prediction], examples: Sequence[Example]) -> dict[str, float]:
    """recall20, recall10, recall5, tau_b and coverage90 of predictions for the prompts of these examples.

    A truncated sample counts with the tokens that it has: those were generated, and no more.

    Args:
        predictions: one for each example.
        examples: at least one.
    """
    scores: list[float] = []
    lengths: list[int] = []
    covered = 0
    for prediction, example in zip(predictions, examples, strict=True):
        scores += [prediction.score] * len(example.lengths)
        lengths += example.lengths
        covered += sum(length <= prediction.p90 for length in example.lengths)
    found = {name: recall(scores, lengths, share) for name, share in SHARES.items()}
    return {**found, "tau_b": tau_b(scores, lengths), "coverage90": covered / len(lengths)}


def ceiling20(examples: Sequence[Example], seed: int = 0) -> float | None:
    """`ceiling` of the longest 20 %."""
    return ceiling(examples, 0.2, seed)


def ceiling(examples: Sequence[Example], share: float, seed: int = 0) -> float | None:
    """What recall of the longest a prompt's own samples give: ranked by the mean of one half, scored on the other.

    Mean over random halves, both ways. What differs between samples of one prompt is luck, which no prediction from the prompt
    knows; so this, and not 1, is what recall compares with. Half of the samples say less than all that there is to know, so a
    good prediction can exceed it a little.

    Args:
        examples: prompts with their samples.
        share: of all samples, the longest, as in `recall`.
        seed: of the halves.

    Returns:
        None if no prompt has two samples.
    """
    found = []
    for split in range(_SPLITS):
        for known, asked in halves(examples, seed + split):
            if not asked:
                return None
            sums: dict[str, list[int]] = {}
            for example in known:
                sums.setdefault(example.prompt, []).extend(example.lengths)
            means = {prompt: fmean(lengths) for prompt, lengths in sums.items()}
            found.append(
                recall([means[example.prompt] for example in asked], [example.lengths[0] for example in asked], share)
            )
    return fmean(found)


_DRAWS = 200
_ROUNDING = 1e-9


def compare_orders(
    old: Sequence[float], new: Sequence[float], examples: Sequence[Example], seed: int = 0
) -> tuple[float, float]:
    """Shares of random draws in which the new scores find more, and fewer, of the longest 20 % than the old ones.

    A draw takes as many prompts with replacement, with all their samples, and measures both orders (the paired bootstrap):
    chance that is common to both counts for neither.

    Args:
        old, new: one score for each example.
        examples: at least one.
        seed: of the draws.
    """
    prompts: dict[str, list[tuple[float, float, tuple[int, ...]]]] = {}
    for before, after, example in zip(old, new, examples, strict=True):
        prompts.setdefault(example.prompt, []).append((before, after, example.lengths))
    rows, drawn = list(prompts.values()), random.Random(seed)
    more = fewer = 0
    for _ in range(_DRAWS):
        chosen = [
            (before, after, length)
            for row in drawn.choices(rows, k=len(rows))
            for before, after, lengths in row
            for length in lengths
        ]
        count = tail_count(len(chosen), SHARES["recall20"])
        olds, news, long = (_inside(column, count) for column in zip(*chosen, strict=True))
        gain = math.fsum((b - a) * each for a, b, each in zip(olds, news, long, strict=True))
        more += gain > _ROUNDING
        fewer += gain < -_ROUNDING
    return more / _DRAWS, fewer / _DRAWS


def mean_measures(found: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    """The mean of each figure."""
    return {name: fmean(one[name] for one in found) for name in found[0]}
