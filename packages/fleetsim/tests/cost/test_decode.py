"""Decoding: by hand, against step-by-step sums, and properties that any machine has."""

import math
import pickle
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.fleetsim.cost import DecodeCost
from tailrace.fleetsim.cost.decode import MAX_RUNNING, RooflineStep, roofline_s
from tailrace.fleetsim.engine.state import steps_s
from tailrace.fleetsim.errors import FleetError
from tailrace.fleetsim.hardware import FittedDecode, ModelShape, device, devices, model, models

TOY = ModelShape("toy", layers=2, hidden=8, ffn=16, query_heads=4, kv_heads=2, head_dim=2, vocab=10)
# Round numbers: a layer has 8 x 2 x (8 + 4) + 3 x 8 x 16 = 576 parameters, the output layer 80; 1,232 in all.
MACHINE = replace(
    device("H800"),
    memory_bytes=20_000.0,
    memory_share=0.5,
    reserve_bytes=1_000.0,
    gemm_flops={1: 1e3, 2: 1e3},
    weight_bandwidth={1: 1e3, 2: 1e3},
    roofline_exponent={1: 1.0, 2: 1.0},
    kv_bandwidth=100.0,
    allreduce_latency_s={2: 0.25},
    allreduce_bandwidth=64.0,
    element_s=0.5,
    cpu_s=3.0,
)


def test_one_device_by_hand():
    cost = DecodeCost.of(TOY, MACHINE, 1)
    # 3 s + 2 layers x 0.5 s; 2,464 bytes at 1,000; 3 trajectories x 2,464 FLOPs at 1,000.
    assert cost.fixed_s(3) == pytest.approx(4 + 2.464 + 3 * 2.464)
    # Keys and values of 2 layers, 2 heads of 2, 2 bytes: 32 bytes at 100.
    assert cost.step_s(3, 5) == pytest.approx(cost.fixed_s(3) + 5 * 0.32)
    # 20,000 x 0.5 - 1,000 = 9,000 bytes less 2 x 1,352 of weights (norms and the embedding are weights too).
    assert TOY.params == 1232 + 80 + 2 * 16 + 8
    assert cost.kv_capacity_tokens == math.floor((9000 - 2 * TOY.params) / 32)
    assert cost.roofline_batch == 1


def test_two_devices_by_hand():
    cost = DecodeCost.of(TOY, MACHINE, 2)
    # Two all-reduces in each of two layers: 0.25 s, and for each trajectory 16 bytes x 2 x 1/2 at 64.
    assert cost.fixed_s(3) == pytest.approx(4 + 4 * 0.25 + 3 * 4 * 0.25 + (2.464 + 3 * 2.464) / 2)
    assert cost.per_token_s == pytest.approx(0.16)
    assert cost.kv_capacity_tokens == math.floor((18000 - 2 * TOY.params) / 32)


def test_more_devices_than_key_value_heads_repeat_the_cache():
    wide = DecodeCost.of(replace(TOY, kv_heads=1), MACHINE, 2)
    narrow = DecodeCost.of(replace(TOY, kv_heads=1), MACHINE, 1)
    assert wide.per_token_s == narrow.per_token_s
    free = 9000 - replace(TOY, kv_heads=1).weight_bytes / 2
    assert wide.kv_capacity_tokens == math.floor(free / 16)


def test_a_mixture_reads_the_experts_that_are_hit():
    shape = replace(TOY, experts=4, experts_per_token=1)
    gpu = replace(MACHINE, hbm_bandwidth=1e3 / 0.85)
    step = RooflineStep.of(shape, gpu, 1)
    expert_s = 2 * 4 * 384 * 2 / 1e3
    for running in (0, 1, 2, 7):
        hit = 1 - 0.75**running
        expected = step.overhead_s + step.dense_s + expert_s * hit + running * step.row_s
        assert step(running) == pytest.approx(expected)
    # By enumeration: two trajectories pick one expert of four each.
    distinct = sum(len({first, second}) for first in range(4) for second in range(4)) / 16
    assert step(2) - step.overhead_s - step.dense_s - 2 * step.row_s == pytest.approx(expert_s * distinct / 4)


def test_the_floor_is_a_least_cost_of_dense_models():
    gpu = replace(MACHINE, row_floor=10, roofline_exponent={1: math.inf})
    with_floor, without = DecodeCost.of(TOY, gpu, 1), DecodeCost.of(TOY, gpu, 1, row_floor=False)
    assert with_floor.fixed_s(1) == pytest.approx(4 + 10 * 2.464)
    assert without.fixed_s(1) == pytest.approx(4 + 2.464)
    assert with_floor.fixed_s(11) == without.fixed_s(11) == pytest.approx(4 + 11 * 2.464)
    mixture = replace(TOY, experts=4, experts_per_token=1)
    assert DecodeCost.of(mixture, gpu, 1).fixed_s(1) == DecodeCost.of(mixture, gpu, 1, row_floor=False).fixed_s(1)


def test_a_fitted_cost_is_staleflow_s_equation():
    cost = DecodeCost.fitted(7.28e-8, 1.72e-3, 1.25e-4, 1.07e-2, 237_000)
    assert cost.step_s(1, 1e5) == pytest.approx(7.28e-3 + 1.72e-3 + 1.07e-2)
    assert cost.step_s(100, 1e5) == pytest.approx(7.28e-3 + 1.25e-2 + 1.07e-2)
    assert cost.roofline_batch == 13
    assert cost.kv_capacity_tokens == 237_000
    assert DecodeCost.fitted(0, 1, 0, 0, 1).roofline_batch == MAX_RUNNING


def test_a_device_s_own_measurement_comes_first():
    measured = FittedDecode("Qwen3-30B-A3B", 1, 7.28e-8, 1.72e-3, 1.25e-4, 1.07e-2, 5_000)
    gpu = replace(device("H20"), fitted=(measured,))
    assert DecodeCost.of(model("Qwen3-30B-A3B"), gpu, 1).fixed_s(100) == pytest.approx(1.25e-2 + 1.07e-2)
    assert DecodeCost.of(model("Qwen3-30B-A3B"), gpu, 1).kv_capacity_tokens == 5_000
    other = DecodeCost.of(model("Qwen3-30B-A3B"), gpu, 2)
    assert other.fixed_s(100) == DecodeCost.of(model("Qwen3-30B-A3B"), device("H20"), 2).fixed_s(100)


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ((-1, 0, 0, 0, 1), "seconds per token of decoding of -1"),
        ((0, math.nan, 0, 0, 1), "seconds for the weights of decoding of nan"),
        ((0, 0, math.inf, 0, 1), "seconds per trajectory of decoding of inf"),
        ((0, 0, 0, -2, 1), "overhead of decoding of -2"),
        ((0, 0, 0, 0, 0), "found a KV cache of 0 tokens, expected at least 1"),
    ],
)
def test_impossible_measurements(numbers, message):
    with pytest.raises(FleetError, match=message):
        DecodeCost.fitted(*numbers)


def test_the_table_grows_and_says_what_the_formula_says():
    cost = DecodeCost.of(model("Qwen2.5-32B"), device("H800"), 4)
    step = RooflineStep.of(model("Qwen2.5-32B"), device("H800"), 4)
    for running in (256, 257, 4096, 300, 0, 10_000):
        assert cost.fixed_s(running) == step(running)
    table = cost.fixed_table(20_000)
    assert table[20_000] == step(20_000)
    assert cost.fixed_table(1) is table
    with pytest.raises(FleetError, match="found a batch of 65537 running trajectories, expected 0 to 65536"):
        cost.fixed_s(MAX_RUNNING + 1)


def test_a_cost_is_pickled_for_other_processes():
    cost = DecodeCost.of(model("Qwen3-30B-A3B"), device("H20"), 2)
    again = pickle.loads(pickle.dumps(cost))
    assert again.step_s(500, 1e5) == cost.step_s(500, 1e5)


costs = st.one_of(
    st.sampled_from(
        [
            (name, gpu, size)
            for name in models()
            for gpu in devices()
            for size in (1, 2, 4, 8)
            if model(name).query_heads % size == 0
            and model(name).weight_bytes < size * device(gpu).usable_bytes - model(name).kv_bytes_per_token * size
        ]
    ).map(lambda one: DecodeCost.of(model(one[0]), device(one[1]), one[2])),
    st.tuples(*[st.floats(0, 1) for _ in range(4)], st.integers(1, 10**6)).map(lambda one: DecodeCost.fitted(*one)),
)


@settings(max_examples=80, deadline=None)
@given(costs, st.integers(0, 600), st.integers(0, 600), st.floats(0, 1e6))
def test_more_trajectories_take_longer_but_less_than_apart(cost, one, other, tokens):
    less, more = sorted((one, other))
    assert cost.step_s(less, tokens) <= cost.step_s(more, tokens) * (1 + 1e-12)
    # Batching never loses: together is not slower than one after the other.
    together = cost.step_s(one + other, tokens)
    assert together <= (cost.step_s(one, tokens) + cost.step_s(other, 0)) * (1 + 1e-12)


def whole_s(cost, running, tokens, steps):
    return steps_s(steps, cost.step_s(running, tokens), running * cost.per_token_s / 2)


@settings(max_examples=60, deadline=None)
@given(costs, st.integers(0, 300), st.floats(0, 1e6), st.integers(0, 60))
def test_many_steps_are_the_sum_of_single_steps(cost, running, tokens, steps):
    single = math.fsum(cost.step_s(running, tokens + index * running) for index in range(steps))
    assert whole_s(cost, running, tokens, steps) == pytest.approx(single, rel=1e-9)


@settings(max_examples=60, deadline=None)
@given(costs, st.integers(0, 300), st.floats(0, 1e6), st.integers(0, 500), st.integers(0, 500))
def test_an_interruption_between_steps_costs_nothing(cost, running, tokens, first, second):
    apart = whole_s(cost, running, tokens, first) + whole_s(cost, running, tokens + running * first, second)
    assert whole_s(cost, running, tokens, first + second) == pytest.approx(apart, rel=1e-9)


@settings(max_examples=200, deadline=None)
@given(st.floats(0, 1e3), st.floats(0, 1e3), st.floats(1, 20), st.floats(1, 20))
def test_a_roofline_lies_between_the_larger_and_the_sum(memory_s, compute_s, one, other):
    low, high = sorted((one, other))
    largest, both = max(memory_s, compute_s), memory_s + compute_s
    sharp, round_ = roofline_s(memory_s, compute_s, high), roofline_s(memory_s, compute_s, low)
    assert largest == roofline_s(memory_s, compute_s, math.inf)
    assert largest <= sharp * (1 + 1e-12)
    assert sharp <= round_ * (1 + 1e-12)
    assert round_ <= both * (1 + 1e-12)
    assert roofline_s(memory_s, compute_s, 1.0) == pytest.approx(both)
    assert roofline_s(memory_s, compute_s, low) == roofline_s(compute_s, memory_s, low)
