"""The backend megatron computes what transformers and FSDP2 do, on one rank, tensor-parallel and data-parallel."""

import dataclasses
import functools
import json
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, Qwen2Config, Qwen3Config

from tailrace.trainer import ModelError, TrainerConfig, TrainerConfigError
from tailrace.trainer.backend import build_backend, check_backend
from tailrace.trainer.backends import megatron
from tailrace.trainer.config import AdapterConfig
from tailrace.trainer.layout import PackedRow, TrainingSample
from tailrace.trainer.microbatch import to_tensors
from tailrace.trainer.testing import BackendContract, inside
from tailrace.trainer.worker import TrainerWorker

sys.path.insert(0, str(Path(__file__).parent))
import trainer_processes
from dear_contract_tests import DEAR

from tailrace.trainer.sharded_model import least_loaded

pytestmark = pytest.mark.skipif(find_spec("megatron") is None, reason="needs tailrace-trainer[megatron]")
VOCAB = 31  # two ranks pad it
KINDS = {"qwen3": Qwen3Config, "qwen2": Qwen2Config}


@pytest.fixture(autouse=True)
def leaves_no_process_group():
    """One whose construction fails leaves its group to the process."""
    yield
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


@pytest.mark.inherited(deep=[*DEAR, BackendContract.test_gradients_that_were_added_make_the_step_of_the_whole_batch])
class TestMegatron(BackendContract):
    def build(self, model_path, config):
        return build_backend("megatron", model_path, config, rank=0, world_size=1, rendezvous=None)


def one_rank(path, config) -> Any:
    return megatron(path, config, rank=0, world_size=1, rendezvous=None)


def make(directory, kind, *, tied, seed=0, **changes):
    """A tiny model whose parameters, norms and biases included, are all drawn at random."""
    sizes: dict[str, Any] = {
        "hidden_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    }
    sizes |= {"intermediate_size": 22, "vocab_size": VOCAB, "max_position_embeddings": 128, "rms_norm_eps": 1e-5}
    sizes |= {"head_dim": 8} if kind == "qwen3" else {}
    torch.manual_seed(seed)
    config = KINDS[kind](
        **sizes | changes, tie_word_embeddings=tied, rope_parameters={"rope_type": "default", "rope_theta": 500.0}
    )
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.3 + ("norm" in name))
    model.save_pretrained(directory)
    return directory


MODELS = [(kind, tied) for kind in KINDS for tied in (True, False)]


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("megatron")
    for kind, tied in MODELS:
        make(root / f"{kind}-{tied}", kind, tied=tied)
    return root


ROWS = [
    PackedRow((1, 2, 3), (TrainingSample((1, 2, 3), (4, 30, 5, 0), 1.0), TrainingSample((1, 2, 3), (6, 29), 1.0))),
    PackedRow((7,), (TrainingSample((7,), (8, 9, 10), 1.0),)),
]


@pytest.mark.parametrize(("kind", "tied"), MODELS)
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_log_probabilities_and_entropies_are_those_of_transformers(root, kind, tied, temperature):
    lm = AutoModelForCausalLM.from_pretrained(root / f"{kind}-{tied}")
    expected, spread = [], []
    for row in ROWS:
        for sample in row.samples:
            ids = torch.tensor([[*sample.prompt, *sample.response]])
            with torch.no_grad():
                table = (lm(input_ids=ids).logits[0] / temperature).log_softmax(-1)
            for number, token in enumerate(sample.response, len(sample.prompt) - 1):
                expected.append(table[number, token])
                spread.append(-(table[number].exp() * table[number]).sum())
    with (
        one_rank(root / f"{kind}-{tied}", TrainerConfig(device="cpu")) as worker,
        worker._model.micro_batch(last=True) as forward,
    ):
        found, entropy = forward(to_tensors(ROWS, worker.device), temperature, True)
    torch.testing.assert_close(found.detach(), torch.stack(expected), atol=5e-6, rtol=1e-5)
    torch.testing.assert_close(entropy, torch.stack(spread), atol=5e-6, rtol=1e-5)


KL = {"kl_coefficient": 0.1}
CHUNKS = {"logits_budget": 100, "activation_checkpointing": "on"}  # with collectives in passes that are done again
CASES: dict[int, dict[str, Any]] = {
    2: {
        "tp 2": ("megatron", {**KL, "tensor_parallel": 2}, "qwen3-True", None, None),
        "dp 2": ("megatron", KL, "qwen3-True", None, None),
        "tp 2 streamed": ("megatron", {**KL, **CHUNKS, "tensor_parallel": 2}, "qwen3-True", (4,), None),
        "cells 2": ("megatron", {**KL, "cells": 2}, "qwen3-True", (1, 3), None),
        "qwen2 tp 2": ("megatron", {**KL, "tensor_parallel": 2}, "qwen2-False", None, None),
        "tp 2 of fsdp2's": ("megatron", {**KL, "tensor_parallel": 2}, "qwen3-True", None, "one saved"),
        "fsdp2 of tp 2's": ("fsdp2", KL, "qwen3-True", None, "tp 2 saved"),
    },
    4: {
        "tp 2 cells 2": ("megatron", {**KL, "tensor_parallel": 2, "cells": 2}, "qwen3-True", (1, 4), None),
        "tp 2 dp 2": ("megatron", {**KL, "tensor_parallel": 2}, "qwen3-True", None, None),
    },
    1: {"tp 1 of tp 2's": ("megatron", KL, "qwen3-True", None, "tp 2 saved")},
}
ONE = {
    "one": ("fsdp2", KL, "qwen3-True", None, None),
    "one qwen2": ("fsdp2", KL, "qwen2-False", None, None),
}


@pytest.fixture(scope="module")
def runs(root):
    """The directory of the cases with so many ranks, which are trained when they are asked for first."""
    trainer_processes.run_cases(0, 1, ONE, root)

    @functools.cache
    def run(ranks):
        if ranks == 1:  # it begins with what two have saved
            run(2)
        trainer_processes.run_all(trainer_processes.run_cases, ranks, CASES[ranks], root)
        return root

    return run


# Parallel in two ways at once: with --deep.
@pytest.mark.parametrize(
    ("ranks", "case"),
    [
        pytest.param(ranks, case, marks=[pytest.mark.deep] * (ranks == 4))
        for ranks, cases in CASES.items()
        for case in cases
    ],
)
@pytest.mark.cases(4)
def test_gradients_metrics_and_weights_are_those_of_one_fsdp2_process(runs, ranks, case):
    root = runs(ranks)
    one = load_file(root / ("one qwen2.safetensors" if "qwen2" in case else "one.safetensors"))
    found = load_file(root / f"{case}.safetensors")
    if "'s" in case:  # the first step is another's
        one = {key: value for key, value in one.items() if key[:10] not in ("gradient/0", "metrics/0 ")}
    assert one.keys() == found.keys()
    assert sum(float(value.abs().sum()) for key, value in one.items() if key.startswith("gradient/")) > 0.1
    # float32 sums in another order; weights and later metrics more, since Adam divides by the gradient
    for key in one:
        absolute = 2e-6 if key.startswith("gradient/0") else 1e-4
        torch.testing.assert_close(
            found[key], one[key], atol=absolute, rtol=1e-4, msg=lambda told, key=key: f"{key}: {told}"
        )


def moments(rank, world_size, model, rendezvous, out):
    """How many elements of parameters this rank has, all and of the largest, and of moments after a step and after a load."""
    config = dataclasses.replace(trainer_processes.CONFIG, micro_batch_tokens=200)
    built: Any = build_backend("megatron", model, config, rank=rank, world_size=world_size, rendezvous=rendezvous)
    with built as worker:
        worker.step([trainer_processes.long_batch(0)])
        inner, counts = inside(worker), []
        worker.save(out / "saved", 0).result(60)
        torch.distributed.barrier()  # the first rank's future says that it is complete
        for _ in range(2):
            states = inner.optimizer.state.values()
            counts.append(sum(state[kind].numel() for state in states for kind in ("exp_avg", "exp_avg_sq")))
            worker.load(out / "saved")
        tensors = [tensor.numel() for tensor in inner.local.values()]
        (out / f"rank{rank}").write_text(json.dumps([sum(tensors), max(tensors), *counts]))


@pytest.mark.deep
def test_data_parallel_ranks_have_the_moments_of_the_model_once_together(root, tmp_path):
    trainer_processes.run_all(moments, 3, root / "qwen2-False", f"file://{tmp_path}/meet", tmp_path)
    found = [json.loads((tmp_path / f"rank{rank}").read_text()) for rank in range(3)]
    parameters, largest = found[0][:2]
    for after in (2, 3):  # the step, and the load
        assert sum(row[after] for row in found) == 2 * parameters
        assert max(row[after] for row in found) <= 2 * (parameters / 3 + largest)


@given(st.dictionaries(st.text(max_size=3), st.integers(0, 100), max_size=12), st.integers(1, 5))
def test_no_place_has_more_elements_than_another_by_more_than_a_tensor(sizes, places):
    found = least_loaded(sizes, places)
    assert found.keys() == sizes.keys()
    held = [sum(size for name, size in sizes.items() if found[name] == place) for place in range(places)]
    assert max(held) - min(held) <= max(sizes.values(), default=0)
    assert found == least_loaded(dict(reversed(sizes.items())), places)


@pytest.mark.parametrize("case", ["tp 2", "qwen2 tp 2", "dp 2"])
def test_a_checkpoint_is_a_model_that_transformers_loads(runs, case):
    """Its log-probabilities are those of FSDP2's checkpoint of the same step."""
    other = "one qwen2 saved" if "qwen2" in case else "one saved"
    ids = torch.tensor([[1, 2, 3, 4, 30, 5]])
    with torch.no_grad():
        found, expected = (
            AutoModelForCausalLM.from_pretrained(runs(2) / name)(ids).logits.log_softmax(-1)
            for name in (f"{case} saved", other)
        )
    torch.testing.assert_close(found, expected, atol=5e-4, rtol=1e-4)
    assert json.loads((runs(2) / f"{case} saved" / "config.json").read_text())["vocab_size"] == VOCAB


# transformers normalises in float32, whatever the dtype
@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-6), ("bfloat16", 2e-2)])
def test_other_dtypes_train_as_fsdp2_does(root, dtype, tolerance):
    config = dataclasses.replace(trainer_processes.CONFIG, dtype=dtype)
    seen = []
    for backend in ("fsdp2", "megatron"):
        worker = build_backend(backend, root / "qwen3-False", config, rank=0, world_size=1, rendezvous=None)
        metrics = [worker.step([trainer_processes.long_batch(number)]) for number in range(2)]
        wide = {name: tensor.dtype for name, tensor in inside(worker).whole_parameters()}
        assert set(wide.values()) == {torch.float64 if dtype == "float64" else torch.float32}
        assert {tensor.dtype for _, tensor in worker.weights()} == {getattr(torch, dtype)}
        seen.append([step[name] for step in metrics for name in ("loss", "grad_norm", "entropy")])
        worker.close()
    assert seen[1] == pytest.approx(seen[0], rel=tolerance, abs=tolerance)


QWEN = {
    "model_type": "qwen3",
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "hidden_size": 64,
    "intermediate_size": 96,
    "layer_types": ["full_attention"],
}


@pytest.mark.parametrize(
    ("changes", "settings", "processes", "says"),
    [
        ({"model_type": "llama"}, {}, 1, "model_type = 'llama' for backend megatron, expected 'qwen2' or 'qwen3'; "),
        ({"model_type": "qwen3_moe"}, {}, 1, "model_type = 'qwen3_moe'"),
        (
            {},
            {"tensor_parallel": 4},
            4,
            "tensor_parallel = 4 and 2 key-value heads with backend megatron, expected a divisor",
        ),
        ({"num_key_value_heads": 8}, {"tensor_parallel": 3}, 3, "tensor_parallel = 3 and 8 heads"),
        ({"intermediate_size": 97}, {"tensor_parallel": 2}, 2, "tensor_parallel = 2 and 97 columns of the MLP"),
        ({}, {"tensor_parallel": 2}, 1, "tensor_parallel = 2 and 1 processes of a cell"),
        ({}, {"tensor_parallel": 2, "cells": 2}, 2, "tensor_parallel = 2 and 1 processes of a cell"),
        (
            {"rope_parameters": {"rope_type": "yarn"}},
            {},
            1,
            "rope_type = 'yarn' for backend megatron, expected 'default'",
        ),
        ({"use_sliding_window": True}, {}, 1, "layer_types = 'full_attention, sliding_attention'"),
        ({"attention_bias": True}, {}, 1, "attention_bias = 'True'"),
        ({"attention_dropout": 0.1}, {}, 1, "attention_dropout = '0.1'"),
    ],
)
def test_what_it_cannot_train_is_named_before_anything_starts(changes, settings, processes, says):
    check_backend("megatron", TrainerConfig(tensor_parallel=2), 2, QWEN)
    with pytest.raises(TrainerConfigError, match=says) as told:
        check_backend("megatron", TrainerConfig(**settings), processes, QWEN | changes)
    assert "\n" not in str(told.value)


def test_activations_that_are_computed_again_and_a_small_logits_budget_change_nothing(root):
    weights = []
    for changes in ({}, {"activation_checkpointing": "on"}, {"logits_budget": 100}):
        config = dataclasses.replace(trainer_processes.CONFIG, **changes)
        with one_rank(root / "qwen3-True", config) as worker:
            worker.step([trainer_processes.long_batch(0)])
            weights.append({name: tensor.clone() for name, tensor in worker.weights()})
    for name, tensor in weights[0].items():
        assert torch.equal(weights[1][name], tensor), name
        torch.testing.assert_close(weights[2][name], tensor, atol=1e-4, rtol=1e-4)


def test_a_model_without_some_of_its_tensors_is_refused(root, tmp_path):
    model = make(tmp_path / "model", "qwen3", tied=True)
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(
        json.dumps(config | {"num_hidden_layers": 3, "layer_types": ["full_attention"] * 3})
    )
    with pytest.raises(ModelError, match=r"found no 'model\.layers\.2\."):
        megatron(model, TrainerConfig(device="cpu"), rank=0, world_size=1, rendezvous=None)
    (model / "config.json").write_text(json.dumps(config | {"vocab_size": 40}))
    with pytest.raises(ModelError, match=r"found no 'model\.embed_tokens\.weight' of shape \[40, 24\]"):
        megatron(model, TrainerConfig(device="cpu"), rank=0, world_size=1, rendezvous=None)
    with pytest.raises(ModelError, match=r"found no readable config\.json"):
        megatron(tmp_path / "none", TrainerConfig(device="cpu"), rank=0, world_size=1, rendezvous=None)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"adapter": AdapterConfig(rank=4)}, "adapter of rank 4 with the backend 'megatron', which trains none"),
        ({"tensor_parallel": 2}, "tensor_parallel = 2 and 1 processes of a cell"),
    ],
)
def test_a_rank_is_refused_before_it_joins_a_process_group(root, changes, says):
    with pytest.raises(TrainerConfigError, match=says):
        build_backend("megatron", root / "qwen3-True", TrainerConfig(**changes), rank=0, world_size=1, rendezvous=None)
    assert not torch.distributed.is_initialized()


def test_fsdp2_refuses_tensor_parallel_ranks(root):
    with pytest.raises(
        TrainerConfigError, match="found tensor_parallel = 2 with backend fsdp2, expected 1, or backend megatron"
    ):
        TrainerWorker(root / "qwen3-True", TrainerConfig(device="cpu", tensor_parallel=2))
