"""Longest processing time first: its order, and how far it may be from the best."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.repack import LoadError, lpt
from tailrace.repack.testing.streamrl_reference import optimal_makespan, spread_slowly

lengths = st.lists(st.integers(1, 60), min_size=1, max_size=12)


@settings(max_examples=300, deadline=None)
@given(lengths, st.integers(1, 6))
def test_it_is_within_grahams_bound_of_the_best(lengths, slots):
    makespan = lpt(lengths, slots).makespan
    best = optimal_makespan(lengths, slots)
    assert best <= makespan <= (4 / 3 - 1 / (3 * slots)) * best + 1e-9


@settings(max_examples=200, deadline=None)
@given(st.lists(st.one_of(st.integers(1, 9), st.floats(1, 1e5)), min_size=1, max_size=40), st.integers(1, 50))
def test_it_does_what_a_plain_scan_does(lengths, slots):
    schedule = lpt(lengths, slots)
    assert list(schedule.order) == sorted(range(len(lengths)), key=lambda at: (-lengths[at], at))
    queues = spread_slowly(lengths, slots)
    assert schedule.makespan == max(sum(lengths[at] for at in queue) for queue in queues)


def test_grahams_own_worst_case():
    # Two of 5, two of 4, three of 3 on three slots: the best is 9, longest first takes 11.
    assert lpt([5, 5, 4, 4, 3, 3, 3], 3).makespan == 11
    assert optimal_makespan([5, 5, 4, 4, 3, 3, 3], 3) == 9
    assert pytest.approx(4 / 3 - 1 / 9) == 11 / 9


def test_more_slots_than_trajectories():
    assert lpt([2, 7, 7], 100) == lpt([2, 7, 7], 3)
    assert lpt([2, 7, 7], 100).order == (1, 2, 0)


@pytest.mark.parametrize(
    ("given", "slots", "words"),
    [
        ([], 2, "no lengths"),
        ([1, 0], 2, r"lengths\[1\]=0, expected"),
        ([1, math.inf], 2, r"lengths\[1\]=inf, expected"),
        ([1, "2"], 2, r"lengths\[1\]='2', expected"),
        ([1], 0, "slots=0, expected"),
        ([1], 1.5, "slots=1.5, expected"),
    ],
)
def test_what_cannot_be_scheduled_is_one_typed_line(given, slots, words):
    with pytest.raises(LoadError, match=words):
        lpt(given, slots)
