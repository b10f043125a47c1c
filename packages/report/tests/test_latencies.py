"""Quantiles over time against the sorted list of everything that was added."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.report.fold.turns import Latencies

added = st.lists(st.tuples(st.floats(0, 50), st.floats(1e-4, 1e3)), min_size=1, max_size=150)


def filled(values, most):
    """The latencies, and every duration with the moment at which it ended."""
    latencies, at_s, exact = Latencies(most), 0.0, []
    for gap_s, seconds in values:
        at_s += gap_s
        exact.append((at_s, seconds))
        latencies.add(at_s, seconds)
    return latencies, exact


def nearest_rank(durations, share):
    return sorted(durations)[max(1, math.ceil(share * len(durations))) - 1]


@given(added, st.sampled_from([2, 4, 16]), st.floats(0, 1))
def test_a_quantile_is_within_a_hundredth(values, most, share):
    latencies, exact = filled(values, most)
    assert latencies.quantile(share) == pytest.approx(nearest_rank([each for _, each in exact], share), rel=0.0101)
    assert latencies.mean_s == pytest.approx(sum(each for _, each in exact) / len(exact))
    assert latencies.count == len(exact)


@given(added, st.sampled_from([2, 4, 16]), st.sampled_from([2, 3, 8]), st.floats(0, 1))
def test_stretches_have_what_ended_in_them_and_there_are_not_too_many(values, most, shown, share):
    latencies, exact = filled(values, most)
    spells = latencies.spells(shown)
    assert len(spells) <= shown
    assert [spell.begin_s for spell in spells] == sorted(spell.begin_s for spell in spells)
    assert sum(spell.bins.total() for spell in spells) == len(exact)
    for spell in spells:
        within = [seconds for at_s, seconds in exact if spell.begin_s <= at_s < spell.end_s]
        assert spell.bins.total() == len(within)
        assert spell.quantile(share) == pytest.approx(nearest_rank(within, share), rel=0.0101)


@given(added)
def test_memory_is_bounded(values):
    latencies, _ = filled(values, 4)
    assert len(latencies._spells) <= 4


def test_what_took_no_time_counts_as_the_least():
    latencies = Latencies()
    latencies.add(0.0, 0.0)
    assert latencies.quantile(0.5) == 1e-4


def test_nothing_has_no_quantile():
    latencies = Latencies()
    assert (latencies.quantile(0.5), latencies.mean_s, latencies.spells(4)) == (0.0, 0.0, [])
