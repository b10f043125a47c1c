"""Equations 2 to 4 by hand with the paper's coefficients, and what they say of an H20."""

import random

import pytest

from tailrace.repack import ThroughputModel, ideal_gain, marginal_gain

# StaleFlow, Table 4; its KV unit is tokens.
TABLE_4 = ThroughputModel(7.28e-8, 1.72e-3, 1.25e-4, 1.07e-2)


def test_equation_2():
    # 7.28 ms of attention, 50 * 0.125 ms of multiplication, 10.7 ms of overhead: 50 tokens in 24.23 ms
    assert TABLE_4.throughput(100_000, 50) == pytest.approx(2063.557573)
    # few trajectories: reading the weights takes 1.72 ms however few they are
    assert TABLE_4.throughput(10_000, 5) == pytest.approx(380.285975)


def test_equation_3():
    # 51 tokens in 7.4256 + 6.375 + 10.7 = 24.5006 ms are 2081.581676 a second
    gain = marginal_gain(TABLE_4, kv_tokens=100_000, running=50, waiting=0, length=2000)
    assert gain == pytest.approx(2081.581676 - 2063.557573, abs=1e-5)
    # 6 tokens in 0.7644 + 1.72 + 10.7 = 13.1844 ms are 455.083280 a second
    gain = marginal_gain(TABLE_4, kv_tokens=10_000, running=5, waiting=0, length=500)
    assert gain == pytest.approx(455.083280 - 380.285975, abs=1e-5)


def test_a_long_trajectory_can_cost_more_than_it_brings():
    assert marginal_gain(TABLE_4, kv_tokens=100_000, running=80, waiting=0, length=20_000) < 0


@pytest.mark.parametrize(
    ("state", "fits"),
    [
        ({}, True),
        ({"waiting": 1}, False),
        ({"capacity": 5}, False),
        ({"capacity": 6}, True),
        ({"kv_budget_tokens": 10_499}, False),
        ({"kv_budget_tokens": 10_500}, True),
        ({"kv_budget_tokens": 0}, True),  # unknown
    ],
)
def test_what_has_to_wait_gains_nothing(state, fits):
    state = {"kv_tokens": 10_000, "running": 5, "waiting": 0, "length": 500} | state
    assert (marginal_gain(TABLE_4, **state) > 0) == fits


def test_equation_4():
    # 0.1456 + 1.72 + 10.7 = 12.5656 ms
    assert ideal_gain(TABLE_4, 2000) == pytest.approx(79.582352)
    assert ideal_gain(TABLE_4, 2000) == marginal_gain(TABLE_4, kv_tokens=0, running=0, waiting=0, length=2000)


def test_the_ideal_gain_has_no_product_of_coefficients():
    # Algorithm 3 prints k1 * k2 * length: 1 / (2 * 3 * 4 + 3 + 5) instead of 1 / (2 * 4 + 3 + 5).
    assert ideal_gain(ThroughputModel(2, 3, 1, 5), 4) == 1 / 16


def test_the_knee():
    # An H20 computes 148 TFLOPS and reads 4 TB/s: in bf16, 37 trajectories for every pass over dense weights.
    parameters = 8e9
    dense = ThroughputModel(0.0, 2 * parameters / 4e12, 2 * parameters / 148e12, 0.0)
    assert dense.k2 / dense.k3 == pytest.approx(37)
    # Table 4 is a regression over a mixture of experts, with another knee: it is fitted, not known.
    assert TABLE_4.k2 / TABLE_4.k3 == pytest.approx(13.76)
    assert TABLE_4.roofline_batch == 13


def test_table_4_is_found_again():
    numbers = random.Random(4)
    points = [(numbers.randrange(300_000), count) for count in (1, 4, 8, 13, 14, 20, 60, 120) for _ in range(5)]
    fitted = ThroughputModel.fit([(kv, count, TABLE_4.step_latency_s(kv, count)) for kv, count in points])
    for name in ("k1", "k2", "k3", "k4"):
        assert getattr(fitted, name) == pytest.approx(getattr(TABLE_4, name), rel=1e-6)
