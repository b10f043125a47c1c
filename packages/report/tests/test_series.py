"""A series against the list of its samples: bounded, and its means are those of the samples."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.report.fold.series import Series

samples = st.lists(st.tuples(st.floats(0.01, 10), st.floats(-100, 100), st.floats(0, 1)), max_size=200)


def filled(values, most):
    series, at_s, ends = Series(2, most), 0.0, []
    for gap, first, second in values:
        at_s += gap
        ends.append(at_s)
        series.add(at_s, [first, second])
    series.close()
    return series, ends


def means(values, place, size):
    """Over time: each sample stands for the gap before it."""
    parts = [values[at : at + size] for at in range(0, len(values), size)]
    return [sum(value[0] * value[place] for value in part) / sum(value[0] for value in part) for part in parts]


@given(samples, st.sampled_from([2, 4, 6, 16]))
def test_every_column_is_the_mean_of_as_many_samples(values, most):
    series, ends = filled(values, most)
    assert len(series.ends_s) <= most
    size = 1
    while len(values) >= most * size:
        size *= 2
    assert series.row(0) == pytest.approx(means(values, 1, size))
    assert series.row(1) == pytest.approx(means(values, 2, size))
    assert series.ends_s == [ends[min(at + size, len(ends)) - 1] for at in range(0, len(ends), size)]


@given(samples, st.integers(1, 20))
def test_a_coarser_one_covers_the_same_time(values, most):
    series, ends = filled(values, 64)
    coarser = series.coarser(most)
    assert len(coarser.ends_s) <= most
    assert coarser.ends_s[-1:] == series.ends_s[-1:] == ends[-1:]
    assert coarser.ends_s == sorted(coarser.ends_s)
    lasts = [end_s - begin_s for begin_s, end_s in pairwise([0.0, *coarser.ends_s])]
    assert len(lasts) <= 1 or min(lasts) >= ends[-1] / most - 1e-6
    if series.ends_s:
        assert min(series.row(0)) - 1e-9 <= min(coarser.row(0)) <= max(coarser.row(0)) <= max(series.row(0)) + 1e-9


def test_columns_of_a_stretch_of_time():
    series, _ = filled([(1.0, float(place), 0.0) for place in range(10)], 64)
    inside = [place for place, end_s in enumerate(series.ends_s) if 2.0 < end_s <= 5.0]
    assert [series.column(place)[0] for place in inside] == [2.0, 3.0, 4.0]


@given(samples, samples, st.sampled_from([2, 4, 16]))
def test_a_value_that_comes_later_was_zero_before(before, after, most):
    wide, narrow, at_s = Series(3, most), Series(2, most), 0.0
    for place, (gap, first, second) in enumerate([*before, *after]):
        at_s += gap
        if place == len(before):
            narrow.widen()
        wide.add(at_s, [first, second, second if place >= len(before) else 0.0])
        narrow.add(at_s, [first, second, second][: narrow.rows])
    wide.close()
    narrow.close()
    assert narrow.ends_s == wide.ends_s
    for row in range(narrow.rows):
        assert narrow.row(row) == pytest.approx(wide.row(row))
