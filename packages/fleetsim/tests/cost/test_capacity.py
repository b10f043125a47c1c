"""What fits, and what is said if it does not."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.fleetsim.cost import DecodeCost, PrefillCost, TrainingCost, kv_capacity_tokens
from tailrace.fleetsim.errors import DoesNotFitError, FleetError
from tailrace.fleetsim.hardware import device, devices, model, models


@pytest.mark.parametrize(
    ("name", "gpu", "size", "message"),
    [
        (
            "Qwen2.5-72B",
            "H800",
            1,
            (
                "Qwen2.5-72B on 1 x H800: 145.4 GB of weights do not fit into 70.0 GB (80.0 GB x 0.9 - 2.0 GB); "
                "tensor_parallel = 4 would"
            ),
        ),
        (
            "Qwen2.5-72B",
            "H800",
            2,
            (
                "Qwen2.5-72B on 2 x H800: 145.4 GB of weights do not fit into 140.0 GB (2 x (80.0 GB x 0.9 - 2.0 GB)); "
                "tensor_parallel = 4 would"
            ),
        ),
        (
            "Qwen3-235B-A22B",
            "H20",
            2,
            (
                "Qwen3-235B-A22B on 2 x H20: 470.2 GB of weights do not fit into 168.8 GB (2 x (96.0 GB x 0.9 - 2.0 GB)); "
                "tensor_parallel = 8 would"
            ),
        ),
    ],
)
def test_weights_that_do_not_fit(name, gpu, size, message):
    with pytest.raises(DoesNotFitError) as error:
        DecodeCost.of(model(name), device(gpu), size)
    assert str(error.value) == message


def test_nothing_would_do():
    huge = replace(model("Qwen3-235B-A22B"), bytes_per_param=4.0)
    with pytest.raises(DoesNotFitError, match=r"940\.4 GB .* 70\.0 GB .*; not even tensor_parallel = 8 would"):
        kv_capacity_tokens(huge, device("H800"), 1)


@pytest.mark.parametrize("cost", [DecodeCost, PrefillCost])
@pytest.mark.parametrize(
    ("name", "size", "message"),
    [
        ("Qwen2.5-7B", 8, "tensor_parallel = 8, but Qwen2.5-7B has 28 attention heads, which it does not divide; "),
        ("Qwen2.5-72B", 16, "tensor_parallel = 16, but H800 has no constants for it; expected one of: 1, 2, 4, 8"),
        ("Qwen2.5-72B", 0, "tensor_parallel = 0, but H800 has no constants for it; expected one of: 1, 2, 4, 8"),
    ],
)
def test_impossible_tensor_parallelism(cost, name, size, message):
    with pytest.raises(FleetError, match=message):
        cost.of(model(name), device("H800"), size)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(sorted(models())), st.sampled_from(sorted(devices())), st.sampled_from([1, 2, 4, 8]))
def test_the_advice_holds(name, gpu, size):
    shape = model(name)
    if shape.query_heads % size:
        size = 1
    try:
        tokens = kv_capacity_tokens(shape, device(gpu), size)
    except DoesNotFitError as error:
        advised = int(str(error).removesuffix(" would").rpartition("= ")[2])
        assert advised > size
        assert kv_capacity_tokens(shape, device(gpu), advised) >= 1
        assert advised == 2 or shape.weight_bytes > advised / 2 * device(gpu).usable_bytes
    else:
        # The last token fits, one more does not.
        shards = min(size, shape.kv_heads)
        per_gpu = shape.weight_bytes / size + tokens * shape.kv_bytes_per_token / shards
        assert per_gpu <= device(gpu).usable_bytes * (1 + 1e-12)
        assert per_gpu + shape.kv_bytes_per_token / shards > device(gpu).usable_bytes * (1 - 1e-12)


def test_training_state_that_does_not_fit():
    message = (
        r"training Qwen2.5-72B on 8 x H800: 1163.3 GB of weights, gradients and optimizer state do not fit into 576.0 GB "
        r"\(8 x 80.0 GB x 0.9\); 17 GPUs would"
    )
    with pytest.raises(DoesNotFitError, match=message):
        TrainingCost.of(model("Qwen2.5-72B"), device("H800"), 8)
    TrainingCost.of(model("Qwen2.5-72B"), device("H800"), 17)
    with pytest.raises(DoesNotFitError, match="33 GPUs would"):
        TrainingCost.of(model("Qwen2.5-72B"), device("H800"), 17, critic=True)
    with pytest.raises(FleetError, match=r"found 0 GPUs to train Qwen2\.5-72B on"):
        TrainingCost.of(model("Qwen2.5-72B"), device("H800"), 0)


# Smallest trainers of Laminar's Table 2, StaleFlow's and RobustRL's testbeds: these ran.
@pytest.mark.parametrize(
    ("name", "gpu", "gpus"),
    [("Qwen2.5-7B", "H800", 8), ("Qwen2.5-32B", "H800", 16), ("Qwen2.5-72B", "H800", 32), ("Qwen3-30B-A3B", "H20", 64)],
)
def test_trainers_of_the_papers_fit(name, gpu, gpus):
    TrainingCost.of(model(name), device(gpu), gpus)
