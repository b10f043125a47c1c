"""Layers that keep only their inputs: the same gradients, and bytes per token that the model's width bounds."""

import dataclasses
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig

from tailrace.trainer import TrainerConfig, TrainerConfigError
from tailrace.trainer.layout import PackedRow, TrainingSample
from tailrace.trainer.microbatch import to_tensors
from tailrace.trainer.policy_model import Policy, load_policy
from tailrace.trainer.small_model import build_model
from tailrace.trainer.testing import inside

sys.path.insert(0, str(Path(__file__).parent))
import trainer_processes

SMALL = {"hidden": 16, "layers": 3, "heads": 2, "head_dim": 8, "mlp": 48}


def gradients_of_a_step(rank, world_size, model, config, rendezvous, out: Path):
    """The gradient of one batch, with each layer an FSDP unit of its own."""
    fsdp2: Any = import_module("tailrace.trainer.fsdp2")
    from tailrace.trainer.worker import TrainerWorker

    fsdp2.SMALL_MODEL_PARAMETERS = 0
    with TrainerWorker(model, config, rank=rank, world_size=world_size, rendezvous=rendezvous) as worker:
        worker.accumulate(trainer_processes.batch(1))
        found = {name: parameter.grad.full_tensor() for name, parameter in inside(worker).parameters.items()}
        if rank == 0:
            save_file(found, str(out))


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.cases(1)
def test_gradients_are_equal_with_and_without(ranks, tmp_path):
    model = build_model(tmp_path / "model", vocab_size=31, **SMALL)
    found = {}
    for setting in ("on", "off"):
        config = dataclasses.replace(trainer_processes.CONFIG, activation_checkpointing=setting)
        meet, out = f"file://{tmp_path}/{setting}", tmp_path / f"{setting}.safetensors"
        trainer_processes.run_all(gradients_of_a_step, ranks, model, config, meet, out)
        found[setting] = load_file(out)
    assert max(float(value.abs().max()) for value in found["on"].values()) > 1e-3
    for name, value in found["off"].items():
        assert torch.equal(found["on"][name], value), name


def saved_bytes(model: Path, layers: int, tokens: int, setting: Any) -> int:
    """Bytes that a forward pass keeps for the backward pass, each storage once, parameters left out."""
    policy = load_policy(build_model(model / f"{layers}", vocab_size=31, **SMALL | {"layers": layers}))
    policy.configure(TrainerConfig(activation_checkpointing=setting))
    policy.train()
    sample = TrainingSample((1,), tuple(token % 31 for token in range(tokens - 1)), 1.0)
    batch = to_tensors([PackedRow((1,), (sample,))], torch.device("cpu"))
    parameters = {parameter.untyped_storage().data_ptr() for parameter in policy.parameters()}
    kept: dict[int, torch.UntypedStorage] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameters:
            kept[storage.data_ptr()] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        policy(batch, 1.0, False)
    return sum(storage.nbytes() for storage in kept.values())


def test_a_layer_keeps_its_input_alone(tmp_path):
    hidden = 4 * SMALL["hidden"]  # bytes of a token's hidden state in float32
    for tokens in (64, 512):
        found = {
            setting: (saved_bytes(tmp_path, 5, tokens, setting) - saved_bytes(tmp_path, 2, tokens, setting))
            / 3
            / tokens
            for setting in ("on", "off")
        }
        print(f"bytes per token and layer at {tokens} tokens: {found}")
        assert found["on"] <= 1.05 * hidden
        assert found["off"] >= 8 * hidden


def test_auto_is_for_large_models_that_offer_it(monkeypatch, tmp_path):
    module: Any = import_module("tailrace.trainer.policy_model")

    model = build_model(tmp_path, vocab_size=31, **SMALL)
    for limit, expected in ((module.SMALL_MODEL_PARAMETERS, False), (100, True)):
        monkeypatch.setattr(module, "SMALL_MODEL_PARAMETERS", limit)
        policy = load_policy(model)
        policy.configure(TrainerConfig())
        assert policy.lm.is_gradient_checkpointing is expected
        monkeypatch.setattr(type(policy.lm), "supports_gradient_checkpointing", False)
        plain = load_policy(model)
        plain.configure(TrainerConfig())
        assert not plain.lm.is_gradient_checkpointing
        with pytest.raises(TrainerConfigError, match="found activation_checkpointing = 'on' with Qwen3ForCausalLM"):
            plain.configure(TrainerConfig(activation_checkpointing="on"))
        monkeypatch.setattr(type(policy.lm), "supports_gradient_checkpointing", True)


@pytest.mark.parametrize("name", ["llama", "gpt 2, with dropout"])
def test_other_models_have_the_same_gradients_too(name):
    """What was drawn in the forward pass (dropout) is drawn again."""
    shape = {
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 24,
        "vocab_size": 31,
    }
    config = LlamaConfig(**shape) if name == "llama" else GPT2Config(n_embd=16, n_layer=2, n_head=2, vocab_size=31)
    torch.manual_seed(0)
    policy = Policy(AutoModelForCausalLM.from_config(config))
    policy.probe()
    sample = TrainingSample((1, 2), tuple(range(3, 20)), 1.0)
    batch = to_tensors([PackedRow((1, 2), (sample,))], torch.device("cpu"))
    found = []
    for setting in ("off", "on"):
        policy.configure(TrainerConfig(activation_checkpointing=setting))
        policy.zero_grad()
        policy.train()
        torch.manual_seed(5)
        policy(batch, 1.0, False)[0].sum().backward()
        found.append([parameter.grad.clone() for parameter in policy.parameters()])
    assert all(torch.equal(*pair) for pair in zip(*found, strict=True))
