"""Quantile tables against slow references: a mixture's distribution function, its inverse by bisection, sorted draws."""

from __future__ import annotations

import math
import random
from statistics import NormalDist

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.fleetsim.workload.lengths import SPAN, Lengths, QuantileTable
from tailrace.fleetsim.workload.shapes import Constant, Lognormal, Mixture, Normal, Quantiles

STANDARD = NormalDist()

lognormals = st.builds(Lognormal, st.floats(1.0, 30_000.0), st.floats(0.05, 2.5))
normals = st.builds(Normal, st.floats(10.0, 20_000.0), st.floats(1.0, 6_000.0))
mixtures = st.builds(
    Mixture, st.lists(st.tuples(st.floats(0.01, 5.0), lognormals | normals), min_size=2, max_size=5).map(tuple)
)


def below(shape: Mixture | Lognormal | Normal, tokens: float) -> float:
    """The distribution function, from the standard library's normal distribution."""
    if isinstance(shape, Lognormal):
        return NormalDist(math.log(shape.median), shape.sigma).cdf(math.log(tokens)) if tokens > 0 else 0.0
    if isinstance(shape, Normal):
        return NormalDist(shape.mean, shape.sd).cdf(tokens)
    total = sum(weight for weight, _ in shape.parts)
    return sum(weight * below(part, tokens) for weight, part in shape.parts) / total


def inverse(shape: Mixture, share: float) -> float:
    low, high = -1e6, 1e12
    for _ in range(200):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if below(shape, middle) < share else (low, middle)
    return 0.5 * (low + high)


@given(mixtures, st.floats(-4.0, 4.0))
def test_a_mixture_is_inverted(shape: Mixture, score: float) -> None:
    found, expected = shape.quantile(score), inverse(shape, STANDARD.cdf(score))
    # Where the components are far apart the inverse is steep: being right means having the right share below.
    assert found == pytest.approx(expected, rel=1e-6, abs=1e-3) or below(shape, found) == pytest.approx(
        STANDARD.cdf(score), abs=1e-9
    )


@given(mixtures)
def test_tails_of_a_mixture_are_those_of_its_components(shape: Mixture) -> None:
    for score in (-SPAN, -7.0, 7.0, SPAN):
        ends = [part.quantile(score) for _, part in shape.parts]
        assert min(ends) <= shape.quantile(score) <= max(ends)


@settings(max_examples=25, deadline=None)  # each builds tables, 50 ms for a mixture
@given(mixtures | lognormals | normals, st.floats(0.1, 4.0))
def test_a_table_never_decreases(shape: Mixture | Lognormal | Normal, scale: float) -> None:
    table = QuantileTable(shape, scale)
    assert all(slope >= 0 for slope in table.slopes)


@settings(deadline=None)
@given(lognormals, st.floats(-6.0, 6.0), st.floats(0.1, 4.0))
def test_a_table_is_precise(shape: Lognormal, score: float, scale: float) -> None:
    exact = scale * shape.median * math.exp(shape.sigma * score)
    assert QuantileTable(shape, scale).at(score) == pytest.approx(exact, rel=3e-6 * shape.sigma**2 + 1e-12)


@settings(deadline=None)
@given(lognormals | normals, st.floats(-9.4, 9.4), st.integers(1, 50_000))
def test_tokens_are_whole_and_within_limits(shape: Lognormal | Normal, score: float, limit: int) -> None:
    tokens = QuantileTable(shape, 1.0).tokens(score, limit)
    assert isinstance(tokens, int)
    assert 1 <= tokens <= limit


@given(
    st.lists(
        st.tuples(st.integers(1, 999_999), st.floats(0.01, 1e6)),
        min_size=2,
        max_size=8,
        unique_by=lambda point: point[0],
    )
)
def test_measured_quantiles_are_hit(points: list[tuple[int, float]]) -> None:
    shares, tokens = sorted(share / 1e6 for share, _ in points), sorted(length for _, length in points)
    shape = Quantiles(tuple((STANDARD.inv_cdf(share), length) for share, length in zip(shares, tokens, strict=True)))
    for score, length in shape.points:
        assert shape.quantile(score) == pytest.approx(length, rel=1e-6)
    ends = [shape.quantile(score) for score in (-SPAN, -1.0, 1.0, SPAN)]
    assert ends == sorted(ends)
    assert 0 <= ends[0] <= tokens[0] * (1 + 1e-9)


def test_quantiles_of_a_lognormal_are_a_lognormal() -> None:
    true = Lognormal(900, 0.7)
    shape = Quantiles(tuple((score, true.quantile(score)) for score in (-1.0, 0.0, 2.0)))
    for score in (-5.0, -0.3, 1.0, 4.0):
        assert shape.quantile(score) == pytest.approx(true.quantile(score), rel=1e-12)


@pytest.mark.parametrize(
    "lengths",
    [
        Lengths(Lognormal(3500, 0.99)),
        Lengths(Lognormal(3500, 0.99), scale=0.5, cap=3000),
        Lengths(
            Mixture(((0.4, Normal(5000, 2000)), (0.1, Lognormal(300, 1.0)), (0.5, Normal(12000, 4000)))), cap=16000
        ),
        Lengths(Constant(700)),
    ],
    ids=["lognormal", "scaled and capped", "mixture", "constant"],
)
@pytest.mark.parametrize("factor", [1.0, 1.4])
@pytest.mark.cases(3)
def test_the_spread_is_that_of_draws(lengths: Lengths, factor: float) -> None:
    seed, count, most = 7, 50_000, 16_384
    generator, limit = random.Random(seed), lengths.limit(most)
    draws = sorted(
        max(1.0, min(limit, factor * lengths.scale * lengths.shape.quantile(generator.gauss()))) for _ in range(count)
    )
    mean = sum(draws) / count
    deviation = math.sqrt(sum((draw - mean) ** 2 for draw in draws) / count)
    spread = lengths.spread(most, factor)
    assert spread.mean == pytest.approx(mean, abs=4 * deviation / math.sqrt(count) + 1e-6 * mean), seed
    assert spread.p50 == pytest.approx(draws[count // 2], rel=0.03), seed
    assert spread.p99 == pytest.approx(draws[int(0.99 * count)], rel=0.06), seed
    assert spread.at_cap == pytest.approx(sum(draw == limit for draw in draws) / count, abs=0.01), seed
    assert draws[-1] <= spread.longest * (1 + 1e-9) <= limit * (1 + 1e-9)
    assert str(spread).startswith("mean ")


def test_the_mean_of_a_capped_lognormal_is_the_textbook_one() -> None:
    median, sigma, cap = 3500.0, 0.99, 16_384
    edge = math.log(cap / median) / sigma
    mean = median * math.exp(sigma**2 / 2) * STANDARD.cdf(edge - sigma) + cap * (1 - STANDARD.cdf(edge))
    spread = Lengths(Lognormal(median, sigma), cap=cap).spread()
    assert spread.mean == pytest.approx(mean, rel=1e-4)
    assert spread.at_cap == pytest.approx(1 - STANDARD.cdf(edge), abs=1e-3)
