"""Devices of both stages with the best parallelism of each: against every arrangement, and worked by hand."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.repack import (
    Arrangement,
    LoadError,
    NothingFitsError,
    StageShare,
    ThroughputModel,
    batch_time_s,
    fewest_devices,
    round_sizes,
    share_devices,
)
from tailrace.repack.testing.streamrl_reference import batch_time_slowly, share_slowly

BATCH = (40, 10, 10, 10)
# On two devices half of the computing, and the same fixed second: a step of n trajectories takes n + 1 and n / 2 + 1 seconds.
SIZES = ((1, 0, 0.0, 0.0, 1.0, 1.0), (2, 0, 0.0, 0.0, 0.5, 1.0))
TRAINING = ((1, 130.0), (2, 66.0), (4, 34.0))

costs = st.lists(
    st.tuples(
        st.sampled_from([1, 2, 4]),
        st.sampled_from([0, 25, 60]),
        st.sampled_from([0.0, 1e-3]),
        st.sampled_from([0.0, 0.5]),
        st.sampled_from([0.0, 0.3]),
        st.sampled_from([0.1, 1.0]),
    ),
    min_size=1,
    max_size=3,
    unique_by=lambda row: row[0],
)
trainers = st.lists(st.tuples(st.integers(1, 6), st.sampled_from([5.0, 20.0, 21.0, 50.0])), min_size=1, max_size=4)
batches = st.lists(st.integers(1, 40), min_size=1, max_size=9)
limits = st.sampled_from([None, 1, 3])


@settings(max_examples=200, deadline=None)
@given(batches, st.integers(1, 5), limits, st.sampled_from([10, 40, 47, 90, 1_000]))
def test_a_kv_cache_holds_what_runs(lengths, replicas, slots, kv_tokens):
    model = ThroughputModel(1e-3, 0.1, 0.3, 0.2)
    expected = batch_time_slowly(lengths, replicas, model, slots, kv_tokens)
    assert batch_time_s(lengths, replicas, model, slots, kv_tokens) == pytest.approx(expected, rel=1e-9)


@settings(max_examples=200, deadline=None)
@given(st.integers(2, 8), batches, costs, trainers, limits)
def test_the_share_is_the_best_of_all(devices, batch, sizes, training, slots):
    expected = share_slowly(devices, batch, sizes, training, slots)
    if expected is None:
        with pytest.raises(NothingFitsError):
            share_devices(devices, batch, sizes, training, slots=slots)
        return
    found = share_devices(devices, batch, sizes, training, slots=slots)
    assert found.iteration_s == max(found.generation.seconds, found.training_s) == pytest.approx(expected[0])
    assert found.generation.devices + found.train <= devices
    assert (found.train, found.training_s) in training
    _, kv_tokens, *k = next(row for row in sizes if row[0] == found.generation.size)
    generation_s = batch_time_slowly(batch, found.generation.replicas, ThroughputModel(*k), slots, kv_tokens or None)
    assert found.generation.seconds == pytest.approx(generation_s)


def test_worked_by_hand():
    # Four devices: four replicas take 40 steps of 2 s. Two of two devices: 10 steps with two trajectories and 30 with one.
    assert fewest_devices(4, BATCH, SIZES, 1.0) == Arrangement(2, 2, 10 * 2.0 + 30 * 1.5)
    assert fewest_devices(4, BATCH, SIZES[:1], 1.0) == Arrangement(4, 1, 80.0)
    # Training takes 66 s on two devices. With four, two generate: 10 steps of 3 s, 30 of 1.5 s.
    assert share_devices(6, BATCH, SIZES, TRAINING) == StageShare(Arrangement(2, 2, 65.0), 2, 66.0, 66.0)
    assert share_devices(6, BATCH, SIZES, TRAINING[2:]) == StageShare(Arrangement(1, 2, 75.0), 4, 34.0, 75.0)
    # Two replicas of one device take 10 steps of 3 s and 30 of 2 s, and so do three; four would save 10 s that training takes.
    assert fewest_devices(4, BATCH, SIZES[:1], 90.0) == Arrangement(2, 1, 90.0)


def test_a_model_that_fits_two_devices_only_uses_two_for_each_replica():
    small = (1, 39, 0.0, 0.0, 0.1, 0.1)  # fast, and one token short of the longest response
    assert fewest_devices(4, BATCH, [small, SIZES[1]], 1.0).size == 2
    assert fewest_devices(4, BATCH, [(1, 40, *small[2:]), SIZES[1]], 1.0).size == 1
    with pytest.raises(NothingFitsError, match=r"found no replica of 1 devices .* longest response, 40 tokens"):
        fewest_devices(4, BATCH, [small], 1.0)
    with pytest.raises(NothingFitsError, match="found no replica of 2 devices that fits 1 devices"):
        fewest_devices(1, BATCH, SIZES[1:], 1.0)


def test_of_equally_fast_arrangements_that_of_fewest_devices_is_taken():
    flat = ((1, 0, 0.0, 0.0, 0.0, 1.0), (2, 0, 0.0, 0.0, 0.0, 1.0))  # a step takes a second, whatever runs
    assert fewest_devices(8, BATCH, flat, 1.0) == Arrangement(1, 1, 40.0)
    # An odd device is left over where replicas have two.
    assert fewest_devices(3, BATCH, SIZES[1:], 1.0) == Arrangement(1, 2, 75.0)


@pytest.mark.parametrize(
    ("sizes", "training", "says"),
    [
        (((0, 0, 0.0, 0.0, 0.0, 1.0),), TRAINING, "found a row of 0 devices in replica_costs"),
        (
            (SIZES[0], SIZES[0]),
            TRAINING,
            "found a row of 1 devices in replica_costs, expected at least 1, and each size once",
        ),
        (((1, -1, 0.0, 0.0, 0.0, 1.0),), TRAINING, "found -1 tokens in the KV cache of a replica of 1 devices"),
        (((1, 0, 0.0, 0.0, 0.0, 0.0),), TRAINING, "k2=0.0 and k4=0.0"),
        (SIZES, ((0, 1.0),), "found 1.0 s of training on 0 devices"),
        (SIZES, ((1, 0.0),), "found 0.0 s of training on 1 devices"),
        (SIZES, ((1, math.inf),), "found inf s of training on 1 devices"),
    ],
)
def test_a_row_out_of_its_range_is_refused_in_a_line(sizes, training, says):
    with pytest.raises(LoadError) as caught:
        share_devices(6, BATCH, sizes, training)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 8), batches, costs, limits, st.integers(1, 6), st.sampled_from([1.0, 1.25, 2.0]))
def test_rounds_begin_with_the_size_that_is_soonest_done(devices, lengths, sizes, slots, kept, factor):
    launched = math.ceil(kept * factor)
    ordered = sorted(lengths)
    raced = [ordered[int((place + 0.5) * len(ordered) / launched)] for place in range(launched)]
    all_kept = [ordered[int((place + 0.5) * len(ordered) / kept)] for place in range(kept)]
    cut = raced[kept - 1]
    best = []
    for batch in ([min(one, cut) for one in raced], all_kept):
        seconds = {
            tp: batch_time_slowly(batch, devices // tp, ThroughputModel(*k), slots, kv or None)
            for tp, kv, *k in sizes
            if tp <= devices and max(batch) <= (kv or math.inf)
        }
        best.append(seconds)
    if not all(best):
        with pytest.raises(NothingFitsError, match="found no replica of"):
            round_sizes(devices, lengths, sizes, kept=kept, launched=launched, slots=slots)
        return
    found = round_sizes(devices, lengths, sizes, kept=kept, launched=launched, slots=slots)
    for tp, seconds in zip(found, best, strict=True):
        assert seconds[tp] <= min(seconds.values()) * (1 + 1e-9)


def test_a_race_with_a_small_cache_wants_more_devices_than_its_tail():
    """One device holds seven of the fifteen that race on it, in three turns; the longest response takes 40 s, on two 44 s."""
    sizes = ((1, 70, 0.0, 1.0, 0.0, 0.0), (2, 400, 0.0, 1.0, 0.0, 0.1))
    lengths = [10] * 9 + [40]
    assert round_sizes(2, lengths, sizes, kept=8, launched=30) == (2, 1)
