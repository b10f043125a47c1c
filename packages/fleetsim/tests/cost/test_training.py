"""Training."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.fleetsim.cost import TrainingCost
from tailrace.fleetsim.errors import FleetError
from tailrace.fleetsim.hardware import device, model


def test_the_formula():
    # tokens (6 + 2 r) P / (N F MFU), and attention's share of a forward pass: L nq dh s / P.
    lengths = [3000, 5000, 12_000]
    tokens, squares = sum(lengths), sum(length**2 for length in lengths)
    cost = TrainingCost.of(model("Qwen2.5-32B"), device("H800"), 64, passes=2)
    rate = 64 * 989.5e12 * 0.40
    attention = 64 * 40 * 128 * squares / (31.98e9 * tokens)
    assert cost.update_s(tokens, squares) == pytest.approx(tokens * 6 * 31.98e9 * (1 + attention) / rate, rel=1e-3)
    assert cost.preparation_s(tokens, squares) == pytest.approx(
        tokens * 2 * 2 * 31.98e9 * (1 + attention) / rate, rel=1e-3
    )


def test_a_mixture_trains_its_active_parameters():
    cost = TrainingCost.of(model("Qwen3-30B-A3B"), device("H20"), 64)
    assert cost.update_s(1_000_000, 0) == pytest.approx(6e6 * 3.04e9 / (64 * 148e12 * 0.55), rel=1e-3)


def test_options():
    shape, gpu = model("Qwen2.5-7B"), device("H800")
    plain = TrainingCost.of(shape, gpu, 16)
    assert TrainingCost.of(shape, gpu, 16, mfu=0.2).update_s(1000, 1e6) == pytest.approx(2 * plain.update_s(1000, 1e6))
    ppo = TrainingCost.of(shape, gpu, 16, critic=True)
    assert ppo.update_s(1000, 1e6) == pytest.approx(2 * plain.update_s(1000, 1e6))
    assert ppo.preparation_s(1000, 1e6) == pytest.approx(2 * plain.preparation_s(1000, 1e6))
    stepping = TrainingCost.of(shape, gpu, 16, optimizer_s=0.5)
    assert stepping.update_s(1000, 1e6, 16) == pytest.approx(plain.update_s(1000, 1e6) + 8)
    assert stepping.update_s(0, 0) == 0.5
    assert stepping.preparation_s(1000, 1e6) == plain.preparation_s(1000, 1e6)
    assert TrainingCost.of(shape, gpu, 16, passes=0).preparation_s(1000, 1e6) == 0


def test_a_sequence_costs_its_layers_whatever_its_length():
    """2 x 2 x 2 of 32 devices on each sequence: four at once, each through the half of the layers that is a stage."""
    shape, gpu = model("Qwen2.5-14B"), device("H800")
    sizes = {"tensor_parallel": 2, "pipeline_parallel": 2, "context_parallel": 2}
    plain = TrainingCost.of(shape, gpu, 32, passes=2)
    cost = TrainingCost.of(shape, gpu, 32, passes=2, layer_s=1e-3, **sizes)
    forward_s = 12 / 4 * shape.layers / 2 * 1e-3
    assert cost.preparation_s(1000, 1e6, 12) - plain.preparation_s(1000, 1e6) == pytest.approx(2 * forward_s)
    assert cost.update_s(1000, 1e6, 1, 12) - plain.update_s(1000, 1e6) == pytest.approx(3 * forward_s)
    assert cost.update_s(1000, 1e6) == plain.update_s(1000, 1e6)
    with pytest.raises(FleetError, match=r"found 36 GPUs .* with 2 x 2 x 2 .*, expected a multiple of 8"):
        TrainingCost.of(shape, gpu, 36, **sizes)


@pytest.mark.parametrize("mfu", [0, -0.1, 1.1])
def test_an_impossible_mfu(mfu):
    with pytest.raises(FleetError, match="found an MFU of"):
        TrainingCost.of(model("Qwen2.5-7B"), device("H800"), 16, mfu=mfu)


def test_a_measured_trainer():
    cost = TrainingCost(2.0, 0.5, backward=3.0, passes=1.5, optimizer_s=7.0)
    assert cost.forward_s(10, 4) == 22
    assert cost.preparation_s(10, 4) == 33
    assert cost.update_s(10, 4) == 95


lengths = st.lists(st.integers(1, 40_000), min_size=1, max_size=20)


@given(lengths, lengths, st.sampled_from([32, 64, 128]))
def test_batches_add_up_and_devices_divide(one, other, gpus):
    cost = TrainingCost.of(model("Qwen2.5-72B"), device("H20"), gpus)
    double = TrainingCost.of(model("Qwen2.5-72B"), device("H20"), 2 * gpus)

    def update_s(which, batch):
        return which.update_s(sum(batch), sum(length**2 for length in batch))

    assert update_s(cost, one + other) == pytest.approx(update_s(cost, one) + update_s(cost, other))
    assert update_s(double, one) == pytest.approx(update_s(cost, one) / 2)
    # The same tokens in fewer, longer trajectories cost more.
    assert update_s(cost, [sum(one)]) >= update_s(cost, one) * (1 - 1e-12)
