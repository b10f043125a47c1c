"""The table of models against published counts and the papers."""

import pytest

from tailrace.fleetsim.errors import FleetError, UnknownNameError
from tailrace.fleetsim.hardware import ModelShape, model, models

# Parameters, those a token is multiplied with, bytes in bf16, KV bytes of a token: model cards and cost_model.models.
PUBLISHED = {
    "Qwen2.5-7B": (7.62e9, 7.07e9, 15.2e9, 57344),
    "Qwen2.5-14B": (14.77e9, 13.99e9, 29.5e9, 196608),
    "Qwen2.5-32B": (32.76e9, 31.98e9, 65.5e9, 262144),
    "Qwen2.5-72B": (72.7e9, 71.46e9, 145.4e9, 327680),
    "Qwen3-8B": (8.19e9, 7.57e9, 16.4e9, 147456),
    "Qwen3-32B": (32.76e9, 31.98e9, 65.5e9, 262144),
    "Qwen3-30B-A3B": (30.53e9, 3.04e9, 61.1e9, 98304),
    # "235B in total and 22B activated" counts the embedding: 21.57 + 0.62.
    "Qwen3-235B-A22B": (235.1e9, 21.57e9, 470.2e9, 192512),
}


def test_every_model_is_checked():
    assert set(models()) == set(PUBLISHED)


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_counts(name):
    found = model(name)
    params, gemm_params, weight_bytes, kv_bytes = PUBLISHED[name]
    assert found.params == pytest.approx(params, rel=2e-3)
    assert found.gemm_params == pytest.approx(gemm_params, rel=2e-3)
    assert found.weight_bytes == pytest.approx(weight_bytes, rel=3e-3)
    assert found.kv_bytes_per_token == kv_bytes


def test_exact_count_of_a_checkpoint():
    # Qwen2.5-7B's safetensors: 7,615,616,512 parameters in 339 tensors.
    assert model("Qwen2.5-7B").params == 7_615_616_512
    assert model("Qwen2.5-7B").weight_tensors == 339
    assert model("Qwen3-8B").weight_tensors == 399


def test_experts_are_most_of_a_mixture():
    found = model("Qwen3-30B-A3B")
    # 48 layers of 128 experts, each 3 x 2048 x 768.
    assert found.all_expert_params == 48 * 128 * 3 * 2048 * 768
    active = 48 * 8 * 3 * 2048 * 768
    assert found.gemm_params == found.dense_gemm_params + active
    assert model("Qwen3-8B").all_expert_params == 0
    assert model("Qwen3-8B").gemm_params == model("Qwen3-8B").dense_gemm_params


def test_attention_flops_by_counting():
    small = ModelShape("small", 3, 8, 16, 4, 2, 5, 100)
    tokens = 7
    # Every query head, of every layer, for every pair with the key not behind the query: a dot product and a sum.
    counted = sum(2 * 2 * 5 for _ in range(3) for _ in range(4) for query in range(tokens) for _ in range(query + 1))
    closed = small.attention_flops_per_square_token * tokens**2
    assert closed == pytest.approx(counted, rel=1 / tokens)


def test_an_unknown_models_close_ones_and_all():
    with pytest.raises(UnknownNameError, match=r"'qwen2\.5-72b', did you mean 'Qwen2\.5-72B'") as error:
        model("qwen2.5-72b")
    assert all(name in str(error.value) for name in PUBLISHED)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"query_heads": 6, "kv_heads": 4}, "6 query heads for 4 key-value heads"),
        ({"experts": 4, "experts_per_token": 5}, "found 5 experts for each token, expected 1 to 4"),
        ({"experts": 4}, "found 0 experts for each token, expected 1 to 4"),
        ({"experts_per_token": 1}, "found 1 experts for each token, expected 0 to 0"),
    ],
)
def test_impossible_shapes(changes, message):
    shape = {"layers": 2, "hidden": 8, "ffn": 16, "query_heads": 4, "kv_heads": 2, "head_dim": 4, "vocab": 10}
    with pytest.raises(FleetError, match=message):
        ModelShape("odd", **(shape | changes))
