"""Allocation of devices to generation and training: the best of all pairs, and no more devices than it takes."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.repack import Allocation, LoadError, NothingFitsError, UnmeasuredError, allocate, allocate_across
from tailrace.repack.testing.streamrl_reference import allocate_slowly

INF = math.inf
# Few values: many ties, some sizes that do not fit, and more devices that are sometimes slower.
times = st.lists(st.sampled_from([INF, 8.0, 6.0, 5.0, 4.0, 3.0, 2.0, 1.0]), min_size=14, max_size=14)


def pipelined(generate_s, train_s):
    return max(generate_s, train_s) + 0.25 * min(generate_s, train_s)


def table(seconds):
    return lambda count: seconds[count - 1]


@settings(max_examples=400, deadline=None)
@given(st.integers(2, 14), times, times, st.sampled_from([max, pipelined, lambda generate, train: train]))
def test_it_is_the_best_of_all_pairs(devices, generate, train, iteration_s):
    best = allocate_slowly(
        devices, table(generate), table(train), lambda *both: INF if INF in both else iteration_s(*both)
    )
    if best is None:
        with pytest.raises(NothingFitsError, match=f"no way to share {devices} devices"):
            allocate(devices, table(generate), table(train), iteration_s=iteration_s)
        return
    seconds, used, generating = best
    found = allocate(devices, table(generate), table(train), iteration_s=iteration_s)
    assert found == Allocation(generating, used - generating, seconds)


@settings(max_examples=300, deadline=None)
@given(st.integers(1, 14), st.integers(1, 14), times, times, st.sampled_from([0.0, 0.02, 0.5]))
def test_across_the_slower_stage_keeps_all_and_is_not_held_up(
    generate_devices, train_devices, generate, train, tolerance
):
    slowest = max(generate[generate_devices - 1], train[train_devices - 1])
    if slowest == INF:
        with pytest.raises(NothingFitsError, match="does not fit its"):
            allocate_across(generate_devices, train_devices, table(generate), table(train), tolerance=tolerance)
        return
    found = allocate_across(generate_devices, train_devices, table(generate), table(train), tolerance=tolerance)
    assert found.iteration_s == max(generate[found.generate - 1], train[found.train - 1]) <= slowest * (1 + tolerance)
    if generate[generate_devices - 1] < train[train_devices - 1]:
        kept, all_of_it, shrunk, of = found.train, train_devices, found.generate, generate
    else:
        kept, all_of_it, shrunk, of = found.generate, generate_devices, found.train, train
    assert kept == all_of_it
    assert all(of[fewer - 1] > slowest * (1 + tolerance) for fewer in range(1, shrunk))


def test_a_datacenter_worked_by_hand():
    # 12 devices, 60 / x to generate and 30 / y to train: 8 and 4 take 7.5 both.
    assert allocate(12, lambda count: 60 / count, lambda count: 30 / count) == Allocation(8, 4, 7.5)
    # Of 13, the thirteenth helps nobody: 9 and 4 would still wait for training, 8 and 5 for generation.
    assert allocate(13, lambda count: 60 / count, lambda count: 30 / count) == Allocation(8, 4, 7.5)
    # Without overlap every device helps.
    serial = allocate(12, lambda count: 60 / count, lambda count: 30 / count, iteration_s=lambda *both: sum(both))
    assert (serial.generate, serial.train) == (7, 5)


def test_two_datacenters_worked_by_hand():
    # Generation takes 10 with all 8; training would take 4 with all 8, and 10.67 with 3: more than 2 % above. 4 do.
    assert allocate_across(8, 8, lambda count: 80 / count, lambda count: 32 / count) == Allocation(8, 4, 10.0)
    assert allocate_across(8, 8, lambda count: 80 / count, lambda count: 32 / count, tolerance=0.07) == Allocation(
        8, 3, 32 / 3
    )


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: allocate(1, float, float), LoadError, "devices=1, expected a whole number of at least 2"),
        (lambda: allocate(4, lambda _: INF, float), NothingFitsError, "no way to share 4 devices"),
        (
            lambda: allocate(4, dict[int, float]().__getitem__, float),
            UnmeasuredError,
            "no generate_s for 1 devices .*KeyError",
        ),
        (lambda: allocate(4, float, lambda _: math.nan), UnmeasuredError, "nan as train_s for 1 devices"),
        (lambda: allocate(4, float, lambda _: -1), UnmeasuredError, r"train_s\(1\)=-1.0, expected"),
        (lambda: allocate(4, float, float, iteration_s=lambda *_: math.nan), UnmeasuredError, "=nan, expected seconds"),
        (lambda: allocate_across(0, 4, float, float), LoadError, "generate_devices=0"),
        (lambda: allocate_across(4, 0, float, float), LoadError, "train_devices=0"),
        (lambda: allocate_across(4, 4, float, float, tolerance=-1), LoadError, "tolerance=-1, expected"),
        (
            lambda: allocate_across(4, 4, lambda _: INF, float),
            NothingFitsError,
            "generation does not fit its 4 devices",
        ),
        (lambda: allocate_across(4, 2, float, lambda _: INF), NothingFitsError, "training does not fit its 2 devices"),
    ],
)
def test_what_cannot_be_allocated_is_one_typed_line(call, error, words):
    with pytest.raises(error, match=words) as raised:
        call()
    assert str(raised.value).startswith("found ")
    assert "\n" not in str(raised.value)
