"""Costs from measurements: what they were made of comes out, and none is negative."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.fleetsim.profile.fit_costs import costs, relative_error

coefficient = st.one_of(st.just(0.0), st.floats(1e-3, 1e3))


@given(st.lists(coefficient, min_size=3, max_size=3).filter(any), st.integers(0, 10_000))
def test_what_costs_were_made_of_comes_out(true, seed):
    numbers = random.Random(seed)
    rows = [(1.0, numbers.uniform(1, 100), numbers.uniform(1, 10_000)) for _ in range(30)]
    targets = [sum(a * b for a, b in zip(true, row, strict=True)) for row in rows]
    found = costs(rows, targets)
    assert min(found) >= 0
    assert relative_error(rows, targets, found) < 1e-6


def test_a_column_that_would_be_negative_is_left_out():
    rows = [(1.0, float(x)) for x in range(1, 20)]
    found = costs(rows, [100.0 - x for x in range(1, 20)])
    assert found[1] == 0.0
    assert found[0] == pytest.approx(90, rel=0.05)


def test_columns_that_cannot_be_told_apart_share_no_blame():
    found = costs([(float(x), 2.0 * x) for x in range(1, 9)], [3.0 * x for x in range(1, 9)])
    assert found[0] + 2 * found[1] == pytest.approx(3.0)


def test_nothing_measured_costs_nothing():
    assert costs([], []) == []
    assert costs([(1.0, 2.0)], [0.0]) == [0.0, 0.0]
    assert relative_error([], [], []) == 0.0
