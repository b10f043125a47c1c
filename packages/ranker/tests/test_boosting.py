"""Boosted trees against a slow tree grown cut by cut."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.ranker.baselines.boosting import TreeGrowth, boosted
from tailrace.ranker.methods import Deadline

FOREVER = Deadline(1e9)


def grown_slowly(rows, targets, depth, least):
    """The values that one tree gives its rows: at each node the cut that lowers the squared error most."""
    values = np.zeros(len(rows))

    def grow(members, depth):
        gains = []
        for column in range(rows.shape[1]):
            for cut in np.unique(rows[members, column]):
                left = members[rows[members, column] <= cut]
                right = members[rows[members, column] > cut]
                if min(len(left), len(right)) >= least:
                    error = sum(((targets[side] - targets[side].mean()) ** 2).sum() for side in (left, right))
                    gains.append((((targets[members] - targets[members].mean()) ** 2).sum() - error, column, cut))
        best = max(gains, key=lambda gain: gain[0], default=(0.0,))
        if depth == 0 or best[0] <= 1e-12:
            values[members] = targets[members].sum() / (len(members) + 1.0)
            return
        _, column, cut = best
        grow(members[rows[members, column] <= cut], depth - 1)
        grow(members[rows[members, column] > cut], depth - 1)

    grow(np.arange(len(rows)), depth)
    return values


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 10_000), st.integers(2, 19), st.integers(1, 3), st.integers(1, 3))
def test_one_tree_is_the_slow_one(seed, count, depth, least):
    drawn = np.random.default_rng(seed)
    rows = drawn.integers(0, 5, (count, 3)).astype(np.float32)
    targets = drawn.normal(size=count)
    # With fewer than 20 rows a tree sees them all; a single feature is always seen.
    growth = TreeGrowth(1, depth, 1.0, least)
    found = boosted(rows[:, :1], targets, growth, seed, FOREVER)(rows[:, :1]) - targets.mean()
    expected = grown_slowly(rows[:, :1], targets - targets.mean(), depth, least)
    assert ((targets - targets.mean() - found) ** 2).sum() == pytest.approx(
        ((targets - targets.mean() - expected) ** 2).sum(), abs=1e-9
    ), f"seed {seed}"


def test_it_learns_what_depends_on_two_features_together():
    drawn = np.random.default_rng(0)
    rows = drawn.normal(size=(800, 5)).astype(np.float32)
    targets = np.sign(rows[:, 0] * rows[:, 1]).astype(float)
    trees = boosted(rows[:600], targets[:600], TreeGrowth(150, 3, 0.1, 3), 0, FOREVER)
    assert np.corrcoef(trees(rows[600:]), targets[600:])[0, 1] > 0.8


def test_many_different_values_are_cut_at_their_quantiles():
    rows = np.arange(5000, dtype=np.float32)[:, None]
    trees = boosted(rows, (rows[:, 0] > 2500).astype(float), TreeGrowth(60, 1, 0.2, 1), 0, FOREVER)
    found = trees(np.array([[0.0], [2300.0], [2700.0], [9999.0]], dtype=np.float32))
    assert found == pytest.approx([0, 0, 1, 1], abs=0.05)


def test_it_ends_in_time_with_what_it_has():
    now = [0.0]

    def clock():
        now[0] += 1.0
        return now[0]

    rows = np.arange(40, dtype=np.float32)[:, None]
    trees = boosted(rows, rows[:, 0].astype(float), TreeGrowth(1000, 2, 0.1, 1), 0, Deadline(30.0, clock))
    assert 1 <= len(trees.feature) < 12
