"""The times of passes, worked out by hand."""

import pytest

from tailrace.reward.judge.memory import layer_flops, pass_s, residency_order, shared_s


def test_all_resident_is_computing_alone():
    for pipelined in (True, False):
        assert pass_s([2, 2, 2], [None] * 3, pipelined=pipelined) == 6


def test_without_prefetch_times_add_up():
    assert pass_s([2, 2, 2, 2], [3, None, 3, None], pipelined=False) == 14


@pytest.mark.parametrize(
    ("compute", "copy", "seconds"),
    [
        (2, 3, 3 + 3 * 3 + 2),  # the link is the limit: four copies, then the last layer
        (3, 2, 2 + 4 * 3),  # computing is the limit: one copy is seen
        (3, 3, 3 + 4 * 3),
    ],
)
def test_with_prefetch_the_longer_of_both_counts(compute, copy, seconds):
    assert pass_s([compute] * 4, [copy] * 4, pipelined=True) == seconds


def test_one_slot_lets_no_copy_run_beside_a_streamed_layer():
    assert pass_s([2] * 3, [3] * 3, pipelined=True, slots=1) == 15
    # but beside a resident one: copy 0-3, compute 3-5, copy 5-8 beside the resident layer 5-7, compute 8-10
    assert pass_s([2] * 3, [3, None, 3], pipelined=True, slots=1) == 10


def test_a_resident_layer_first_hides_the_first_copy():
    # copies 0-3 and 3-6; layers 0-2, 3-5, 5-7, 7-9
    assert pass_s([2] * 4, [None, 3, None, 3], pipelined=True) == 9
    # copies 0-3, 3-6; layers 3-5, 5-7, 7-9, 9-11
    assert pass_s([2] * 4, [3, None, 3, None], pipelined=True) == 11


def test_a_third_copy_waits_for_a_slot():
    # copies 0-1 and 1-2; layer 0 computes 1-11, so the third copy runs 11-12; layers 11-21, 21-31
    assert pass_s([10] * 3, [1] * 3, pipelined=True) == 31
    # layers 1-11, 11-12, 12-13: the third copy runs 11-16 with a slow link
    assert pass_s([10, 1, 1], [1, 1, 5], pipelined=True) == 17


def test_operations_of_a_layer():
    assert layer_flops(weights=1000, query=8, tokens=10) == 2 * 1000 * 10 + 2 * 100 * 8
    assert layer_flops(weights=1000, query=8, tokens=10, items=3) == 3 * (20_000 + 1_600)


@pytest.mark.parametrize(
    ("gigabytes_per_s", "streamed", "speedup"), [(50, 14, 1.10), (25, 14, 1.20), (25, 28, 1.38), (12, 14, 1.42)]
)
def test_a_judge_of_7_billion_at_32k_tokens(gigabytes_per_s, streamed, speedup):
    """Qwen2.5-7B on a device of 989 TFLOP/s used by half. RollPacker (section 6.5, figure 14b) says up to 1.4."""
    hidden, mlp, query, key_value, layers = 3584, 18_944, 3584, 512, 28
    weights = hidden * (2 * query + 2 * key_value) + 3 * hidden * mlp
    compute = [layer_flops(weights=weights, query=query, tokens=32_768) / (0.5 * 989e12)] * layers
    assert compute[0] == pytest.approx(0.0464, abs=0.0005)
    resident = set(residency_order(layers)[: layers - streamed])
    copies = [None if layer in resident else 2 * weights / (gigabytes_per_s * 1e9) for layer in range(layers)]
    assert pass_s(compute, copies, pipelined=True) < 1.04 * sum(compute), "copying is hidden"
    gain = pass_s(compute, copies, pipelined=False) / pass_s(compute, copies, pipelined=True)
    assert gain == pytest.approx(speedup, abs=0.01)


@pytest.mark.parametrize(
    ("slowdown", "seconds"),
    [(None, 13.0), (1.0, 10.0), (2.0, 13.0), (1.5, 11.5)],  # 3 s beside 10 s: 1.5 * 3 together, then 7 alone
)
def test_two_processes_on_one_device(slowdown, seconds):
    assert shared_s(10.0, 3.0, slowdown=slowdown) == shared_s(3.0, 10.0, slowdown=slowdown) == seconds
