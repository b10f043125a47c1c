"""Lengths in whole tokens: a shape, scaled and capped, with a table in which a draw is one interpolation.

In a configuration they are a preset, a mixture, quantiles or a constant.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, pairwise
from statistics import NormalDist
from typing import Annotated, Any, Final, Self

from pydantic import BeforeValidator, Field, model_validator

from tailrace.fleetsim.tables import Positive, Strict, as_tuples, interpolated
from tailrace.fleetsim.workload.shapes import Component, Constant, LengthShape, Lognormal, Mixture, Normal, Quantiles

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


# A lognormal of sigma 10 spans 20 orders of magnitude between its first and last percentile; more must be a mistake.
Sigma = Annotated[float, Field(gt=0, le=10)]
# Shares that are closer have the same normal score, or an almost vertical piece between them.
_APART = 1e-6


class ComponentConfig(Strict):
    """A part of a mixture: lognormal (median, sigma) or normal (mean, sd), in tokens."""

    weight: Positive = 1.0
    median: Positive | None = None
    sigma: Sigma | None = None
    mean: Positive | None = None
    sd: Positive | None = None

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        given = [name for name in ("median", "sigma", "mean", "sd") if getattr(self, name) is not None]
        if given not in (["median", "sigma"], ["mean", "sd"]):
            raise ValueError("median with sigma (lognormal), or mean with sd (normal), and not both")
        return self

    @property
    def component(self) -> Component:
        """The distribution."""
        if self.median is not None and self.sigma is not None:
            return Lognormal(self.median, self.sigma)
        assert self.mean is not None
        assert self.sd is not None
        return Normal(self.mean, self.sd)


class LengthsConfig(Strict):
    """Token lengths: one of components, preset, quantiles or tokens.

    Args:
        components: the parts of a mixture.
        preset: a preset's name.
        quantiles: [share, tokens] points, with shares increasing, above 0 and below 1.
        tokens: the same length for all.
        scale: factor on lengths (StreamRL halves and quarters its lengths, section 7).
        cap: most tokens, not scaled; longer responses are cut.
    """

    components: Annotated[tuple[ComponentConfig, ...] | None, BeforeValidator(as_tuples)] = None
    preset: str | None = None
    quantiles: Annotated[tuple[tuple[float, float], ...] | None, BeforeValidator(as_tuples)] = None
    tokens: Annotated[int, Field(ge=1)] | None = None
    scale: Positive = 1.0
    cap: Annotated[int, Field(ge=1)] | None = None

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        ways = ("components", "preset", "quantiles", "tokens")
        if sum(bool(getattr(self, way)) for way in ways) != 1:
            raise ValueError("exactly one of components, preset, quantiles and tokens; or median and sigma")
        if self.preset is not None and self.preset not in RESPONSES:
            raise ValueError(f"a preset: {', '.join(sorted(RESPONSES))}")
        if self.quantiles is not None:
            _check_quantiles(self.quantiles)
        return self

    @property
    def lengths(self) -> Lengths:
        """The distribution. A preset's own cap, at which its source was cut, is scaled with its lengths."""
        if self.preset is None:
            return Lengths(self._shape, self.scale, self.cap)
        known = RESPONSES[self.preset].lengths
        measured = None if known.cap is None else max(1, int(known.cap * self.scale))
        caps = [cap for cap in (self.cap, measured) if cap is not None]
        return Lengths(known.shape, self.scale, min(caps, default=None))

    @property
    def _shape(self) -> LengthShape:
        if self.tokens is not None:
            return Constant(self.tokens)
        if self.quantiles is not None:
            score = NormalDist().inv_cdf
            return Quantiles(tuple((score(share), tokens) for share, tokens in self.quantiles))
        assert self.components is not None
        if len(self.components) == 1:
            return self.components[0].component
        return Mixture(tuple((part.weight, part.component) for part in self.components))


def _check_quantiles(points: tuple[tuple[float, float], ...]) -> None:
    shares, tokens = [share for share, _ in points], [length for _, length in points]
    pairs = list(pairwise(points))
    if len(points) < 2 or not all(0 < share < 1 for share in shares) or any(b[0] - a[0] < _APART for a, b in pairs):
        raise ValueError(
            f"two or more [share, tokens] with shares increasing by {_APART:g} or more, above 0 and below 1"
        )
    if not all(0 < length < math.inf for length in tokens) or any(a[1] > b[1] for a, b in pairs):
        raise ValueError("quantiles that do not decrease, above 0 tokens")


def _as_lengths(value: Any) -> Any:
    if isinstance(value, str):
        return {"preset": value}
    if isinstance(value, int) and not isinstance(value, bool):
        return {"tokens": value}
    if isinstance(value, (list, tuple)):
        return {"components": value}
    if isinstance(value, dict):
        single = {name: value[name] for name in ("weight", "median", "sigma", "mean", "sd") if name in value}
        if single and "components" not in value:
            rest = {name: part for name, part in value.items() if name not in single}
            return {"components": [single], **rest}
    return value


LengthsField = Annotated[LengthsConfig, BeforeValidator(_as_lengths)]


# Distributions that others have measured or published, by name. Token counts are those of the source.


@dataclass(frozen=True, slots=True)
class Preset:
    """Response lengths and, if measured, their correlation within a group."""

    lengths: Lengths
    correlation: float | None = None


def _quantiles(points: Mapping[float, float]) -> Quantiles:
    score = NormalDist().inv_cdf
    return Quantiles(tuple((score(share), tokens) for share, tokens in points.items()))


RESPONSES: Mapping[str, Preset] = {
    # p99 is ten times p50, as in some of Laminar's tasks (section 2.2, Figure 2). With a limit of 16,384 the mean is 5.1K:
    # Laminar's latencies on 32B imply 5K to 6K (inferred; its Figure 17 is not in the text).
    "lognormal": Preset(Lengths(Lognormal(3500, 0.99)), 0.5),
    # PolyTrace (arXiv 2509.25279), verl with DAPO, Qwen2.5-32B from the base model, early steps: 4,608 samples, 576 groups
    # of 8. From p50 on as measured over all. Below p50, chosen by the first step (4 % stop after a few words) such that the
    # mean (581) and the standard deviation of the log (0.92) agree.
    "dapo-32b": Preset(
        Lengths(
            _quantiles(
                {
                    0.02: 28,
                    0.05: 90,
                    0.1: 170,
                    0.25: 308,
                    0.5: 465,
                    0.75: 698,
                    0.9: 1041,
                    0.95: 1416,
                    0.99: 2711,
                    0.999: 5465,
                }
            )
        ),
        0.06,
    ),
    # PolyTrace, rLLM with DeepCoder-14B, limit of 16,000 tokens: 640 samples, 80 groups of 8. From p50 on as measured. Below
    # p50, chosen such that the mean (9,382) and the standard deviation of the log (0.8) agree. Lengths beyond the limit are
    # unknown.
    "deepcoder-14b": Preset(
        Lengths(_quantiles({0.1: 2300, 0.25: 5300, 0.5: 9900, 0.75: 14290, 0.9: 16000}), cap=16000), 0.92
    ),
    # PolyTrace, Intern-S1 in production, mathematics, 385,024 samples: its published mixture of four normal distributions.
    "intern-s1-math": Preset(
        Lengths(
            Mixture(
                (
                    (0.3585, Normal(4959, 2192)),
                    (0.0743, Normal(12720, 6067)),
                    (0.3728, Normal(9175, 3416)),
                    (0.1943, Normal(17655, 5267)),
                )
            )
        )
    ),
}


CALLS: Mapping[str, Mapping[int, float]] = {
    # PolyTrace, Intern-S1 in production, tool calling, 241,546 sessions. It counts calls of the model: a session of n calls has
    # n inputs and n outputs, hence n - 1 calls of the environment.
    "tool-calling": {0: 4640, 1: 18785, 2: 104344, 3: 17533, 4: 48933, 5: 34629, 6: 9189, 7: 1820, 8: 652, 9: 1021},
}
