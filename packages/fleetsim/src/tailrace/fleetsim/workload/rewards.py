"""Rewards: right or wrong, with prompts of different difficulty (some groups have no signal), and how long a score takes."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import accumulate
from random import Random

from tailrace.fleetsim.workload.workload import ModelledSample

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


# How long scoring a sample takes, by kind of task. A share of the programs that a model writes never end.


@dataclass(frozen=True, slots=True)
class ScoringKind:
    """Samples that are scored in one pool.

    Args:
        name: the pool.
        median_s: median seconds of a score.
        sigma: standard deviation of the natural logarithm; 0 for a constant.
        correlation: intraclass correlation of the logarithm among the samples of a prompt, 0 to 1.
        endless: share of samples that never end; they are never right (RollPacker, section 4.3: about 5 % of code prompts
            reach a limit of 30 s).
        references: prompts have reference solutions whose seconds are known: the median of their own samples.
        weight: share of the prompts, relative to the other kinds.
    """

    name: str
    median_s: float
    sigma: float = 0.0
    correlation: float = 0.0
    endless: float = 0.0
    references: bool = False
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class ScoringKinds:
    """The kinds of a workload, at least one. A prompt is of one kind."""

    kinds: tuple[ScoringKind, ...]

    def assign(self, generator: Random, group: list[ModelledSample], samples: Random | None = None) -> None:
        """Draw the kind of a group, and the seconds of each sample; infinite ones make its reward 0.

        Args:
            generator: draws the prompt's kind and time.
            group: its samples.
            samples: draws those of the samples, where they have random numbers of their own; the same one if None.
        """
        shares = list(accumulate(kind.weight for kind in self.kinds))
        drawn = generator.random() * shares[-1]
        kind = next(
            kind for kind, share in zip(self.kinds, shares, strict=True) if drawn < share or share == shares[-1]
        )
        shared = math.sqrt(kind.correlation) * generator.gauss(0.0, 1.0)
        own = math.sqrt(1.0 - kind.correlation)
        generator = generator if samples is None else samples
        middle_s = kind.median_s * math.exp(kind.sigma * shared)
        for sample in group:
            sample.kind, sample.reference_s = kind.name, middle_s if kind.references else None
            sample.reward_s = middle_s * math.exp(kind.sigma * own * generator.gauss(0.0, 1.0))
            if generator.random() < kind.endless:
                sample.reward, sample.reward_s = 0.0, math.inf
