"""What is left after t tokens, against an integral of the same law."""

import math
from statistics import NormalDist

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.ranker import Prediction, RankerOptionError, remaining_tokens
from tailrace.ranker.prediction import Z90

PREDICTIONS = st.builds(lambda p50, ratio: Prediction(p50, p50 * ratio, 0.0), st.floats(1, 5000), st.floats(1.0, 8.0))


def by_integral(prediction, generated, cap=None):
    """E[min(L, cap) - t | L > t]: the integral of the survival function over ln tokens, by the trapezium rule."""
    law = NormalDist(math.log(prediction.p50), math.log(prediction.p90 / prediction.p50) / Z90)
    low = math.log(generated) if generated else law.mean - 12 * law.stdev
    high = math.log(cap) if cap else max(low, law.mean) + 14 * law.stdev
    steps = 20_000
    survive = lambda log: math.erfc((log - law.mean) / law.stdev / math.sqrt(2)) / 2  # noqa: E731
    points = [low + (high - low) * at / steps for at in range(steps + 1)]
    heights = [survive(log) * math.exp(log) for log in points]
    area = (math.fsum(heights) - (heights[0] + heights[-1]) / 2) * (high - low) / steps
    start = math.exp(low) if not generated else 0.0
    return start + area / (survive(low) if generated else 1.0)


@pytest.mark.parametrize("p90", [150.0, 300.0, 900.0])
@pytest.mark.parametrize("generated", [0, 1, 40, 100, 180, 700])
@pytest.mark.parametrize("cap", [None, 1000])
def test_it_is_the_integral(p90, generated, cap):
    prediction = Prediction(100.0, p90, 0.0)
    expected = max(1.0, by_integral(prediction, generated, cap))
    assert remaining_tokens(prediction, generated, cap=cap) == pytest.approx(expected, rel=2e-3)


def test_it_is_not_the_median_less_what_is_there():
    prediction = Prediction(100.0, 400.0, 0.0)
    left = [remaining_tokens(prediction, tokens) for tokens in (0, 100, 400, 2000)]
    assert left[0] > 100, "the mean of a heavy tail lies above its median"
    assert left == sorted(left), "the longer one has taken, the longer it still takes"


@given(PREDICTIONS, st.integers(0, 100_000), st.one_of(st.none(), st.integers(1, 50_000)))
def test_it_is_finite_at_least_one_and_within_the_cap(prediction, generated, cap):
    left = remaining_tokens(prediction, generated, cap=cap)
    assert math.isfinite(left)
    if cap is None:
        assert left >= 1
    elif generated >= cap:
        assert left == 0
    else:
        assert 1 <= left <= cap - generated or left == 1
        assert left <= remaining_tokens(prediction, generated) * (1 + 1e-6) + 1e-6


@given(PREDICTIONS, st.integers(1, 20_000))
def test_a_step_later_little_has_changed(prediction, generated):
    """E[L | L > t] only rises, and by less than the token and what it excludes."""
    now, later = (remaining_tokens(prediction, tokens) for tokens in (generated, generated + 1))
    assert generated + 1 + later >= (generated + now) * (1 - 1e-9)


def test_a_prediction_without_spread():
    sharp = Prediction(50.0, 50.0, 0.0)
    assert remaining_tokens(sharp, 0) == pytest.approx(50, rel=1e-3)
    assert remaining_tokens(sharp, 20) == pytest.approx(30, rel=1e-2)
    assert remaining_tokens(sharp, 500) == 1.0


def test_bad_arguments():
    with pytest.raises(RankerOptionError, match="found -1 generated tokens"):
        remaining_tokens(Prediction(1, 2, 0), -1)
    with pytest.raises(RankerOptionError, match="found a cap of 0 tokens"):
        remaining_tokens(Prediction(1, 2, 0), 1, cap=0)
