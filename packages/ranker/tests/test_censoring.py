"""Quantiles and means with truncated samples."""

import random
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.ranker.censoring import QuantilesByScore, mean_tokens, quantiles

SAMPLES = st.lists(st.tuples(st.integers(1, 12), st.booleans()), min_size=1, max_size=40)


def survival(samples, length):
    """P(L > length) of Kaplan and Meier, factor by factor."""
    left = 1.0
    for at in sorted({size for size, _ in samples if size <= length}):
        risk = sum(size >= at for size, _ in samples)
        left *= 1 - sum(size == at and not cut for size, cut in samples) / risk
    return left


@given(SAMPLES, st.sampled_from([0.25, 0.5, 0.9]))
def test_a_quantile_is_where_survival_comes_down_to_it(samples, share):
    (found,) = quantiles(samples, (share,))
    reached = [size for size, _ in sorted(samples) if survival(samples, size) <= 1 - share + 1e-12]
    assert found == (reached[0] if reached else max(size for size, _ in samples))


def test_without_truncation_it_is_the_sorted_list():
    assert quantiles([(length, False) for length in range(1, 11)]) == (5.0, 9.0)


def test_truncation_makes_the_tail_longer_than_leaving_it_out():
    drawn = random.Random(3)
    real = [max(1, round(drawn.lognormvariate(5, 0.8))) for _ in range(4000)]
    limits = [round(drawn.uniform(100, 900)) for _ in real]
    seen = [(min(length, limit), length > limit) for length, limit in zip(real, limits, strict=True)]
    p90 = sorted(real)[3600]
    assert quantiles(seen)[1] == pytest.approx(p90, rel=0.1)
    ended = sorted(length for length, cut in seen if not cut)
    assert ended[int(0.9 * len(ended))] < 0.8 * p90


@given(SAMPLES)
def test_the_mean_is_the_sum_of_survival(samples):
    longest = max(size for size, _ in samples)
    assert mean_tokens(samples) == pytest.approx(sum(survival(samples, length) for length in range(longest)))


@given(st.lists(st.integers(1, 40), min_size=1, max_size=30), st.integers(1, 40))
def test_under_one_limit_the_mean_is_what_was_generated(lengths, limit):
    samples = [(min(length, limit), length > limit) for length in lengths]
    assert mean_tokens(samples) == pytest.approx(fmean(length for length, _ in samples))


@given(st.lists(st.tuples(st.floats(-5, 5), st.integers(1, 30)), min_size=1, max_size=200), st.floats(-9, 9))
def test_quantiles_by_score_are_quantiles(rows, score):
    fitted = QuantilesByScore.fit([score for score, _ in rows], [[(length, False)] for _, length in rows])
    prediction = fitted(score)
    lengths = [length for _, length in rows]
    assert min(lengths) <= prediction.p50 <= prediction.p90 <= max(lengths)
    assert QuantilesByScore.from_json([list(point) for point in fitted.points]) == fitted


def test_quantiles_follow_the_score():
    drawn = random.Random(0)
    scores = [drawn.uniform(1, 10) for _ in range(600)]
    fitted = QuantilesByScore.fit(scores, [[(round(100 * score), False)] * 4 for score in scores])
    assert [fitted(score).p50 for score in (2.0, 5.0, 9.0)] == pytest.approx([200, 500, 900], rel=0.1)
