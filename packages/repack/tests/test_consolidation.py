"""The fast planner equals Algorithm 1 line by line, and no plan loses or overfills anything."""

import random
import sys
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tailrace.repack import LoadError, Move, ReplicaLoad, consolidate
from tailrace.repack.testing.consolidation_reference import consolidate_slowly

kv_shares = st.one_of(st.floats(0, 1), st.integers(0, 10).map(lambda tenths: tenths / 10))
loads = st.builds(
    ReplicaLoad,
    replica=st.integers(0, 10_000).map(lambda number: f"r{number}"),
    version=st.integers(0, 2),
    kv_used=kv_shares,
    kv_used_before=kv_shares,
    requests=st.integers(0, 12),
    kv_peak=st.none() | kv_shares,
    waiting=st.sampled_from([0, 0, 0, 2]),
    ramp_down=st.sampled_from([None, True, True, False]),
    kv_projected=st.none() | kv_shares.map(lambda share: 1.5 * share),
)
fleets = st.lists(loads, max_size=120, unique_by=lambda load: load.replica)
limits = st.fixed_dictionaries(
    {
        "kv_threshold": st.sampled_from([0.5, 0.99, 1.0]),
        "roofline_batch": st.integers(1, 30),
        "headroom": st.sampled_from([0.0, 0.1, 0.3]),
        "literal": st.booleans(),
    }
)


@settings(max_examples=300, deadline=None)
@given(fleets, limits)
def test_the_fast_planner_equals_the_slow_one(fleet, limit):
    assert consolidate(fleet, **limit) == consolidate_slowly(fleet, **limit)


@pytest.mark.parametrize("seed", range(40))
def test_the_fast_planner_equals_the_slow_one_on_large_fleets(seed):
    # Large enough that blocks split, empty and are skipped.
    numbers = random.Random(seed)
    kv = numbers.choice([lambda: numbers.random(), lambda: numbers.random() ** 6, lambda: numbers.randrange(20) / 20])
    count = numbers.choice([lambda: 1, lambda: numbers.randrange(1, 64), lambda: numbers.choice([1, 63])])
    fleet = [
        ReplicaLoad(f"r{index}", numbers.randrange(2), kv(), 1.0, count())
        for index in range(numbers.randrange(200, 500))
    ]
    limit: dict[str, Any] = {"kv_threshold": 0.99, "roofline_batch": 64, "headroom": numbers.choice([0.0, 0.1])}
    assert consolidate(fleet, **limit) == consolidate_slowly(fleet, **limit), f"seed {seed}"


@settings(max_examples=200, deadline=None)
@given(fleets, limits)
def test_no_trajectory_is_lost_and_no_destination_overfilled(fleet, limit):
    moves = consolidate(fleet, **limit)
    by_name = {load.replica: load for load in fleet}
    sources, destinations = [move.source for move in moves], {move.destination for move in moves}
    assert len(set(sources)) == len(sources)
    assert not destinations & set(sources)
    kv = {name: by_name[name].planned for name in destinations}
    requests = {name: by_name[name].requests for name in destinations}
    for move in moves:
        assert by_name[move.source].version == by_name[move.destination].version
        assert by_name[move.source].requests > 0
        kv[move.destination] += by_name[move.source].planned
        requests[move.destination] += by_name[move.source].requests
    assert all(value <= limit["kv_threshold"] - limit["headroom"] for value in kv.values())
    assert all(value <= limit["roofline_batch"] for value in requests.values())


@settings(max_examples=100, deadline=None)
@given(fleets, limits, st.randoms(use_true_random=False))
def test_the_plan_does_not_depend_on_the_order_of_the_loads(fleet, limit, numbers):
    shuffled = numbers.sample(fleet, len(fleet))
    assert consolidate(shuffled, **limit) == consolidate(fleet, **limit)


@settings(max_examples=100, deadline=None)
@given(fleets, limits)
@example([], {"kv_threshold": 1.0, "roofline_batch": 1, "headroom": 0.0, "literal": False})
def test_after_a_plan_no_two_untouched_candidates_still_fit(fleet, limit):
    # Best fit leaves no pair of replicas that neither gave nor took although one would have fitted on the other.
    moves = consolidate(fleet, **limit)
    touched = {name for move in moves for name in (move.source, move.destination)}
    rest = [load for load in fleet if load.replica not in touched]
    assert consolidate(rest, **limit) == []


def tail(name, kv, requests, version=1):
    return ReplicaLoad(name, version, kv, 0.99, requests)


def test_the_smallest_leaves_first_for_the_fullest_that_fits():
    fleet = [tail("a", 0.1, 2), tail("b", 0.3, 4), tail("c", 0.8, 4)]
    assert consolidate(fleet, kv_threshold=0.99, roofline_batch=64) == [Move("a", "c")]
    assert consolidate(fleet, kv_threshold=0.99, roofline_batch=6) == [Move("a", "c")]
    assert consolidate(fleet, kv_threshold=0.85, roofline_batch=64) == [Move("a", "b")]
    assert consolidate(fleet, kv_threshold=0.99, roofline_batch=64, headroom=0.1) == [Move("a", "b")]


def test_a_destination_never_leaves_in_the_same_plan():
    # As printed, b would take a and then leave for c, while a's trajectories stay on the released b.
    fleet = [tail("a", 0.2, 1), tail("b", 0.25, 1), tail("c", 0.7, 64)]
    assert consolidate(fleet, kv_threshold=0.99, roofline_batch=65) == [Move("a", "c")]
    assert consolidate(fleet, kv_threshold=0.99, roofline_batch=64) == [Move("a", "b")]


def test_versions_do_not_mix():
    fleet = [tail("a", 0.1, 1, version=1), tail("b", 0.1, 1, version=2)]
    assert consolidate(fleet, kv_threshold=0.99, roofline_batch=64) == []


def test_the_latch_sees_a_tail_whose_cache_still_grows():
    # Two long trajectories, none finished since the last sample: usage rose from 0.05 to 0.06 but is far below its peak.
    growing = [ReplicaLoad(name, 1, 0.06, 0.05, 2, kv_peak=0.99) for name in "ab"]
    assert consolidate(growing, kv_threshold=0.99, roofline_batch=64) == [Move("a", "b")]
    assert consolidate(growing, kv_threshold=0.99, roofline_batch=64, literal=True) == []


def test_five_plain_fields_compare_with_the_sample_before():
    falling = [ReplicaLoad(name, 1, 0.06, 0.07, 2) for name in "ab"]
    level = [ReplicaLoad(name, 1, 0.06, 0.06, 2) for name in "ab"]
    assert consolidate(falling, kv_threshold=0.99, roofline_batch=64) == [Move("a", "b")]
    assert consolidate(level, kv_threshold=0.99, roofline_batch=64) == []


def test_who_is_no_candidate():
    partner = tail("p", 0.1, 1)
    for other in (
        ReplicaLoad("x", 1, 0.1, 0.9, 1, waiting=1),
        ReplicaLoad("x", 1, 0.1, 0.9, 0),
        ReplicaLoad("x", 1, 0.1, 0.9, 64),
        ReplicaLoad("x", 1, 0.99, 1.0, 1),
        ReplicaLoad("x", 1, 0.1, 0.9, 1, ramp_down=False),
    ):
        assert consolidate([partner, other], kv_threshold=0.99, roofline_batch=64) == []


@pytest.mark.parametrize(
    ("fleet", "limit", "words"),
    [
        ([tail("a", 0.1, 1)] * 2, {}, "'a' twice"),
        ([], {"kv_threshold": 0.0}, "kv_threshold=0.0"),
        ([], {"kv_threshold": float("nan")}, "kv_threshold=nan"),
        ([], {"headroom": 0.99}, "headroom=0.99"),
        ([], {"headroom": -0.1}, "headroom=-0.1"),
        ([], {"roofline_batch": 0}, "roofline_batch=0"),
    ],
)
def test_what_cannot_be_right_is_refused(fleet, limit, words):
    with pytest.raises(LoadError, match=words):
        consolidate(fleet, **{"kv_threshold": 0.99, "roofline_batch": 64} | limit)


@pytest.mark.parametrize(
    "fields", [{"kv_used": float("nan")}, {"kv_used_before": -1.0}, {"requests": -1}, {"waiting": -1}]
)
def test_a_load_that_cannot_be_right_is_refused(fields):
    values = {"replica": "a", "version": 0, "kv_used": 0.1, "kv_used_before": 0.1, "requests": 1} | fields
    with pytest.raises(ValueError, match=next(iter(fields))):
        ReplicaLoad(**values)


def test_a_plan_over_a_thousand_candidates_takes_few_steps():
    # Counts calls instead of time: the worst case of a plain scan, where half the bins are full of requests.
    fleet = [tail(f"r{index:04}", 0.001 + index / 1e5, 1 if index % 2 else 63) for index in range(1024)]
    steps = 0

    def count(frame, event, _):
        nonlocal steps
        steps += event == "line"
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        consolidate(fleet, kv_threshold=0.99, roofline_batch=64)
    finally:
        sys.settrace(before)
    assert steps < 1024 * 400, steps
