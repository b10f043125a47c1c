"""Lengths in whole tokens: a shape, scaled and capped, with a table in which a draw is one interpolation."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Final

from tailrace.fleetsim.tables import interpolated
from tailrace.fleetsim.workload.shapes import LengthShape

# exp(300) tokens are beyond every cap; a larger exponent would overflow.
_LARGEST_EXPONENT = 300.0
STEPS: Final = 4096
# A sum of two normal values of `groups.draws` with squared weights that sum to 1 is at most sqrt(2) times the largest, 9.42.
# So every score is within the table, and a look-up needs no check.
SPAN: Final = 9.5
PER_SCORE: Final = STEPS / (2 * SPAN)
ZERO: Final = STEPS / 2
_DENSITY = 1.0 / math.sqrt(2.0 * math.pi)


class QuantileTable:
    """Quantiles on an even grid of normal scores, linear in between (for a lognormal at most 3e-6 sigma^2 too long).

    Cell `i` covers scores from ``(i - ZERO) / PER_SCORE`` on. Hot loops read `starts` and `slopes` directly.

    Args:
        shape: the lengths.
        scale: factor on every length.
    """

    __slots__ = ("slopes", "starts")

    def __init__(self, shape: LengthShape, scale: float) -> None:
        found = [scale * shape.quantile((i - ZERO) / PER_SCORE) for i in range(STEPS + 1)]
        values = list(
            accumulate(found, max)
        )  # where a mixture is flat, a root may be a rounding error below the last one
        self.starts = values[:-1]
        self.slopes = [after - before for before, after in pairwise(values)]

    def at(self, score: float) -> float:
        """Tokens at a normal score, neither rounded nor capped."""
        place = score * PER_SCORE + ZERO
        cell = int(place)
        return self.starts[cell] + self.slopes[cell] * (place - cell)

    def tokens(self, score: float, limit: float) -> int:
        """Whole tokens at a normal score: at least 1, at most `limit`."""
        return max(1, int(min(limit, self.at(score)) + 0.5))


@lru_cache(maxsize=64)
def table(shape: LengthShape, scale: float) -> QuantileTable:
    """The table of a shape; cached."""
    return QuantileTable(shape, scale)


@dataclass(frozen=True, slots=True)
class Spread:
    """Figures of a distribution of lengths, with the cap applied.

    Args:
        mean, p50, p99, longest: tokens. Without a cap, `longest` is the 1 - 1e-9 quantile.
        at_cap: share of lengths that the cap cuts (such responses count as finished).
    """

    mean: float
    p50: float
    p99: float
    longest: float
    at_cap: float

    def __str__(self) -> str:
        cut = f", {self.at_cap:.1%} at the cap" if self.at_cap >= 0.0005 else ""
        return (
            f"mean {self.mean:,.0f}, p50 {self.p50:,.0f}, p99 {self.p99:,.0f}, longest {self.longest:,.0f} tokens{cut}"
        )


@dataclass(frozen=True, slots=True)
class Lengths:
    """Token lengths.

    Args:
        shape: the distribution of lengths.
        scale: factor on every length.
        cap: most tokens; a longer response is cut and counts as finished. None for no cap.
    """

    shape: LengthShape
    scale: float = 1.0
    cap: int | None = None

    @property
    def table(self) -> QuantileTable:
        """Quantiles by normal score, scaled but not capped."""
        return table(self.shape, self.scale)

    def limit(self, most: float = math.inf) -> float:
        """The cap, at most `most`; infinite without one."""
        return most if self.cap is None else min(most, self.cap)

    def spread(self, most: float = math.inf, factor: float = 1.0) -> Spread:
        """Figures after a factor (drift) and the cap, by the trapezoidal rule over the table."""
        quantiles, limit = self.table, self.limit(most)

        def capped(score: float) -> float:
            return max(1.0, min(limit, factor * quantiles.at(score)))

        mean = at_cap = total = 0.0
        for cell in range(STEPS):
            score = (cell - ZERO) / PER_SCORE
            weight = _DENSITY * math.exp(-0.5 * score * score) / PER_SCORE
            uncapped = factor * quantiles.starts[cell]
            mean += weight * max(1.0, min(limit, uncapped))
            at_cap += weight * (uncapped >= limit)
            total += weight
        return Spread(mean / total, capped(0.0), capped(P99), capped(ALMOST_ALL), at_cap / total)


P99 = 2.3263478740408408
"""Normal score of the 99th percentile."""
ALMOST_ALL = 5.9978070150076865
"""Normal score of the 1 - 1e-9 quantile."""


# Change of lengths while the model learns: a factor on every length, by weight version.


@dataclass(frozen=True, slots=True)
class Drift:
    """A factor for each version. It is applied before the cap, so responses that grow beyond the cap are cut.

    Args:
        per_version: growth with each version; version v has the factor ``per_version ** v``.
        points: (version, factor) with versions increasing; linear between them, constant outside. They replace growth.
    """

    per_version: float = 1.0
    points: tuple[tuple[int, float], ...] = ()

    def factor(self, version: int) -> float:
        """The factor on lengths of this version's responses."""
        if not self.points:
            if self.per_version == 1.0:
                return 1.0
            return math.exp(min(_LARGEST_EXPONENT, version * math.log(self.per_version)))
        return interpolated(self.points, version)

    @property
    def largest(self) -> float:
        """The largest factor; for unlimited growth, which has none, that of the first version."""
        return max((factor for _, factor in self.points), default=1.0)
