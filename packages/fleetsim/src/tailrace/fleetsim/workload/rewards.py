"""Rewards: right or wrong, with prompts of different difficulty, so that some groups have no signal."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import lru_cache

_BISECTIONS = 80
_NODES = 400
_REACH = 8.0


@dataclass(frozen=True, slots=True)
class SolveRate:
    """The probability that a sample is right: ``sigmoid(a + spread z)`` for each group (a logit-normal).

    `a` is such that the mean over groups is `mean`. With spread 0 all prompts are equally hard. At a mean of one half, 9 % of
    groups of 8 are all right or all wrong with spread 1, and 43 % with spread 3. DAPO's dynamic sampling filters these.

    Args:
        mean: share of samples that are right, from 0 to 1.
        spread: standard deviation of the logit over groups, at least 0.
    """

    mean: float = 0.5
    spread: float = 1.0
    _centre: float = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_centre", _centre(self.mean, self.spread))

    def of(self, score: float) -> float:
        """The probability for a group whose difficulty has this normal score."""
        return 1.0 / (1.0 + math.exp(-self._centre - self.spread * score))


@lru_cache(maxsize=64)
def _centre(mean: float, spread: float) -> float:
    if mean <= 0.0 or mean >= 1.0:
        return math.copysign(math.inf, mean - 0.5)
    logit = math.log(mean / (1.0 - mean))
    # For any spread, the mean lies between the sigmoids at both ends.
    low, high = logit - _REACH * spread, logit + _REACH * spread
    for _ in range(_BISECTIONS):
        middle = 0.5 * (low + high)
        if _mean(middle, spread) < mean:
            low = middle
        else:
            high = middle
    return 0.5 * (low + high)


def _mean(centre: float, spread: float) -> float:
    total = weights = 0.0
    for node in range(_NODES + 1):
        score = _REACH * (2.0 * node / _NODES - 1.0)
        weight = math.exp(-0.5 * score * score)
        total += weight / (1.0 + math.exp(-centre - spread * score))
        weights += weight
    return total / weights
