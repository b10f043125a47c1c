"""Shapes of token lengths, each as a quantile of the normal score.

The normal score z of a length is the standard normal value with the same rank: length = Q(Phi(z)). Shapes give Q(Phi(z))
directly, so tails keep their precision (1 - Phi(9) rounds to 0) and no inverse of Phi is needed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

_ROOT2 = math.sqrt(2.0)
_DENSITY = 1.0 / math.sqrt(2.0 * math.pi)
_MOST_ITERATIONS = 200
# Beyond every cap. Within the table, a steep last piece would go farther and overflow the exponential.
_LARGEST_EXPONENT = 300.0
_TOLERANCE = 1e-12


class LengthShape(Protocol):
    """Token lengths as a non-decreasing function of the normal score. Hashable, so that its table is built once."""

    def quantile(self, score: float) -> float:
        """Tokens at this normal score, neither rounded nor capped; may be below 1."""
        ...

    def __hash__(self) -> int: ...


class Component(LengthShape, Protocol):
    """A shape that can be part of a mixture."""

    def score(self, tokens: float) -> float:
        """The normal score of a length: -inf below all lengths."""
        ...

    def slope(self, tokens: float) -> float:
        """Derivative of `score`; 0 below all lengths."""
        ...


@dataclass(frozen=True, slots=True)
class Constant:
    """Always the same length."""

    tokens: float

    def quantile(self, score: float) -> float:  # noqa: ARG002  every score has this length
        """The length."""
        return self.tokens


@dataclass(frozen=True, slots=True)
class Lognormal:
    """Log length is normal.

    Args:
        median: tokens, above 0.
        sigma: standard deviation of the natural logarithm, above 0. p99 / p50 = exp(2.326 sigma): 10 for 0.99.
    """

    median: float
    sigma: float

    def quantile(self, score: float) -> float:
        return self.median * math.exp(self.sigma * score)

    def score(self, tokens: float) -> float:
        return math.log(tokens / self.median) / self.sigma if tokens > 0 else -math.inf

    def slope(self, tokens: float) -> float:
        return 1.0 / (self.sigma * tokens) if tokens > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Normal:
    """Length is normal; lengths below one token count as one.

    Args:
        mean: tokens.
        sd: standard deviation in tokens, above 0.
    """

    mean: float
    sd: float

    def quantile(self, score: float) -> float:
        return self.mean + self.sd * score

    def score(self, tokens: float) -> float:
        return (tokens - self.mean) / self.sd

    def slope(self, tokens: float) -> float:  # noqa: ARG002  the score is linear
        return 1.0 / self.sd


@dataclass(frozen=True, slots=True)
class Quantiles:
    """Measured quantiles: between two of them log length is linear in the normal score (a lognormal piece each).

    The outermost pieces continue beyond the outermost points, so that unknown tails are not cut.

    Args:
        points: at least two (normal score, tokens), scores strictly increasing, tokens above 0 and not decreasing.
    """

    points: tuple[tuple[float, float], ...]

    def quantile(self, score: float) -> float:
        points = self.points
        after = next((i for i, (known, _) in enumerate(points) if known > score), len(points) - 1)
        (z0, t0), (z1, t1) = points[max(after, 1) - 1], points[max(after, 1)]
        growth = math.log(t1 / t0) * (score - z0) / (z1 - z0)
        return t0 * math.exp(min(growth, _LARGEST_EXPONENT))


@dataclass(frozen=True, slots=True)
class Mixture:
    """Components with weights.

    Args:
        parts: (weight, component), weights above 0; they need not sum to 1.
    """

    parts: tuple[tuple[float, Component], ...]

    def quantile(self, score: float) -> float:
        """The quantile by Newton's method on the logarithm of the nearer tail, kept inside a bracket.

        The bracket is the smallest and the largest of the components' quantiles.
        """
        ends = [part.quantile(score) for _, part in self.parts]
        low, high = min(ends), max(ends)
        upper = score > 0
        target = math.log(_tail(score, upper))
        at = 0.5 * (low + high)
        for _ in range(_MOST_ITERATIONS):
            if high - low <= _TOLERANCE * max(1.0, abs(high)):
                break
            tail, density = self._tail_and_density(at, upper)
            miss = math.log(tail) - target
            if (miss > 0) is upper:
                low = at
            else:
                high = at
            step = miss * tail / density if density > 0 else math.inf
            following = at + step if upper else at - step
            if abs(step) <= _TOLERANCE * max(1.0, abs(at)):
                break
            at = following if low < following < high else 0.5 * (low + high)
        return at

    def _tail_and_density(self, tokens: float, upper: bool) -> tuple[float, float]:
        tail = density = total = 0.0
        for weight, part in self.parts:
            score = part.score(tokens)
            tail += weight * _tail(score, upper)
            density += weight * _DENSITY * math.exp(-0.5 * score * score) * part.slope(tokens)
            total += weight
        return tail / total, density / total


def _tail(score: float, upper: bool) -> float:
    """The normal distribution's probability above (`upper`) or below `score`."""
    return 0.5 * math.erfc((score if upper else -score) / _ROOT2)
