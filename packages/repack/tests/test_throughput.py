"""The cost model: its formula, and coefficients found again from measurements."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.repack import FitError, LoadError, ThroughputModel

# StaleFlow, Table 4; its KV unit is tokens.
TABLE_4 = ThroughputModel(7.28e-8, 1.72e-3, 1.25e-4, 1.07e-2)


def test_the_formula():
    assert TABLE_4.step_latency_s(1e5, 1) == pytest.approx(7.28e-3 + 1.72e-3 + 1.07e-2)
    assert TABLE_4.step_latency_s(1e5, 100) == pytest.approx(7.28e-3 + 1.25e-2 + 1.07e-2)
    assert TABLE_4.throughput(1e5, 100) == pytest.approx(100 / (7.28e-3 + 1.25e-2 + 1.07e-2))
    assert TABLE_4.throughput(0, 0) == 0.0
    assert TABLE_4.roofline_batch == 13
    assert ThroughputModel(0, 1, 0, 0).roofline_batch is None


coefficient = st.floats(0.1, 10)


@settings(max_examples=80, deadline=None)
@given(coefficient, st.integers(3, 60), coefficient, coefficient, st.integers(0, 2**32))
def test_exact_measurements_give_the_coefficients_back(k1, turn, k3, k4, seed):
    truth = ThroughputModel(k1 * 1e-12, (turn + 0.5) * k3 * 1e-5, k3 * 1e-5, k4 * 1e-3)
    numbers = random.Random(seed)
    counts = [1, 2, turn, turn + 1, turn + 9, 3 * turn, 200]
    points = [(numbers.random() * 6e10, count) for count in counts for _ in range(4)]
    fitted = ThroughputModel.fit([(kv, count, truth.step_latency_s(kv, count)) for kv, count in points])
    for name in ("k1", "k2", "k3", "k4"):
        assert getattr(fitted, name) == pytest.approx(getattr(truth, name), rel=1e-6), f"seed {seed}"
    assert fitted.roofline_batch == turn


def test_noisy_measurements_predict_well():
    seed = random.randrange(2**32)
    numbers = random.Random(seed)
    points = [(numbers.random() * 2e5, numbers.randrange(1, 200)) for _ in range(400)]
    samples = [(kv, count, TABLE_4.step_latency_s(kv, count) * numbers.uniform(0.95, 1.05)) for kv, count in points]
    fitted = ThroughputModel.fit(samples)
    for kv, count in points:
        assert fitted.step_latency_s(kv, count) == pytest.approx(TABLE_4.step_latency_s(kv, count), rel=0.05), (
            f"seed {seed}"
        )


@pytest.mark.parametrize(("counts", "zero"), [([1, 5, 13], "k3"), ([20, 50, 80], "k2")])
def test_one_regime_alone_is_fitted_as_far_as_it_was_seen(counts, zero):
    points = [(kv, count) for kv in (0.0, 1e4, 9e4) for count in counts]
    fitted = ThroughputModel.fit([(kv, count, TABLE_4.step_latency_s(kv, count)) for kv, count in points])
    assert getattr(fitted, zero) == 0.0
    for kv, count in points:
        assert fitted.step_latency_s(kv, count) == pytest.approx(TABLE_4.step_latency_s(kv, count))


@pytest.mark.parametrize(
    "samples",
    [
        [],
        [(1.0, 1, 1.0)],
        [(1.0, 1, 1.0)] * 5,
        [(1.0, 1, float("nan")), (2.0, 2, 1.0)],
        [(0.0, 1, 2.0), (1.0, 1, 1.0)],
        [(0.0, 1, 0.0), (1.0, 1, 0.0), (0.0, 2, 0.0)],  # steps that take no time
    ],
)
def test_measurements_that_determine_nothing(samples):
    with pytest.raises(FitError, match="found"):
        ThroughputModel.fit(samples)


def test_steps_that_take_no_time_have_no_throughput():
    assert ThroughputModel(1.0, 0.0, 0.0, 0.0).throughput(4.0, 8) == 2.0
    with pytest.raises(LoadError, match="expected a step that takes time"):
        ThroughputModel(1.0, 0.0, 0.0, 0.0).throughput(0.0, 8)


@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf")])
def test_coefficients_that_make_no_sense(value):
    with pytest.raises(LoadError, match="k3="):
        ThroughputModel(1.0, 1.0, value, 1.0)
