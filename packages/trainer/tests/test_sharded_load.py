"""A model that each rank reads by rows is the one that `from_pretrained` loads, bit for bit; no rank has it whole."""

import dataclasses
import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, Gemma2Config, GPT2Config, LlamaConfig, MixtralConfig, Qwen3MoeConfig

from tailrace.trainer import CheckpointError, ModelError
from tailrace.trainer.policy_model import load_policy
from tailrace.trainer.sharded_load import Experts, ModelFiles, empty_lm, sources
from tailrace.trainer.testing import inside

sys.path.insert(0, str(Path(__file__).parent))
import trainer_processes

SMALL = {"hidden_size": 18, "num_hidden_layers": 2, "num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 6,
         "intermediate_size": 23, "max_position_embeddings": 64, "vocab_size": 31}  # fmt: skip
EVEN = SMALL | {"hidden_size": 16, "intermediate_size": 24, "tie_word_embeddings": False}  # as torch multiplies experts
MODELS = {
    "llama, untied": LlamaConfig(**SMALL, tie_word_embeddings=False),
    "llama, tied, scaled positions": LlamaConfig(
        **SMALL,
        tie_word_embeddings=True,
        rope_parameters={"rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0, "low_freq_factor": 1.0,
                         "high_freq_factor": 4.0, "original_max_position_embeddings": 32},
    ),
    "gemma 2, capped logits": Gemma2Config(**SMALL, final_logit_softcapping=0.05),
    "qwen 3, a mixture of experts": Qwen3MoeConfig(**EVEN, moe_intermediate_size=8, num_experts=5, num_experts_per_tok=2),
    "mixtral, experts under other names": MixtralConfig(**EVEN, num_local_experts=11),
    "gpt 2": GPT2Config(n_embd=16, n_layer=2, n_head=2, vocab_size=31, n_positions=64,
                        resid_pdrop=0, embd_pdrop=0, attn_pdrop=0),
}  # fmt: skip


def load(rank, world_size, directory, dtype, cells, by_rows, rendezvous, out: Path):
    """A step on a model of which each layer is a unit; what it began with, shortcuts, gradients and a reference's penalty."""
    fsdp2: Any = import_module("tailrace.trainer.fsdp2")
    from tailrace.trainer.worker import TrainerWorker

    if by_rows:
        trainer_processes.never_whole()
    else:
        fsdp2.SMALL_MODEL_PARAMETERS = 0
        fsdp2.has_weights_file = lambda _: False
    config = dataclasses.replace(
        trainer_processes.CONFIG, dtype=dtype, cells=cells, kl_coefficient=0.1, activation_checkpointing="off"
    )
    with TrainerWorker(directory, config, rank=rank, world_size=world_size, rendezvous=rendezvous) as worker:
        found = {f"parameter/{name}": tensor.clone() for name, tensor in worker.weights()}
        module = inside(worker).module
        found |= {f"buffer/{name}": buffer.clone() for name, buffer in module.named_buffers()}
        found["shortcuts"] = torch.tensor([module.direct_head, module.shares_prompts])
        metrics = [worker.step([trainer_processes.batch(seed)]) for seed in (1, 2)]
        found |= {f"after/{name}": tensor.clone() for name, tensor in worker.weights()}
        found["kl"] = torch.tensor([step["reference_kl"] for step in metrics])
        if rank == 0:
            save_file({name: tensor.contiguous() for name, tensor in found.items()}, str(out))


@pytest.mark.parametrize(
    ("name", "ranks", "dtype", "cells"),
    [
        ("llama, untied", 2, "bfloat16", 2),
        ("gemma 2, capped logits", 1, "float32", 1),
        ("qwen 3, a mixture of experts", 2, "float32", 1),
        ("gpt 2", 2, "float32", 1),
        *(
            pytest.param(*case, marks=pytest.mark.deep)
            for case in (
                ("llama, untied", 2, "float32", 1),
                ("llama, tied, scaled positions", 2, "float32", 1),
                ("mixtral, experts under other names", 2, "bfloat16", 1),
            )
        ),
    ],
)
@pytest.mark.cases(1)
def test_it_is_what_was_loaded_whole(name, ranks, dtype, cells, tmp_path):
    torch.manual_seed(0)
    lm = AutoModelForCausalLM.from_config(MODELS[name])
    for parameter in lm.parameters():
        parameter.data += 0.1 * torch.randn(parameter.shape)
    lm.to(torch.bfloat16).save_pretrained(tmp_path / "model", max_shard_size="4KB")
    assert len(list((tmp_path / "model").glob("*.safetensors"))) > 1
    found = []
    for by_rows in (False, True):
        meet, out = f"file://{tmp_path}/{by_rows}", tmp_path / f"{by_rows}.safetensors"
        trainer_processes.run_all(load, ranks, tmp_path / "model", dtype, cells, by_rows, meet, out)
        found.append(load_file(out))
    whole, rows = found
    assert rows.keys() == whole.keys()
    assert sum("rotary" in key for key in rows) == (0 if name == "gpt 2" else 2)
    for key, value in whole.items():
        assert torch.equal(rows[key], value), key
    assert float(whole["kl"][0]) == pytest.approx(0, abs=1e-6)
    assert float(whole["kl"][1]) != 0  # the reference stayed where it was


def test_tied_parameters_are_found_under_either_name(tmp_path):
    lm = AutoModelForCausalLM.from_config(MODELS["llama, tied, scaled positions"])
    lm.save_pretrained(tmp_path)
    assert sources(empty_lm(tmp_path, torch.float32), ModelFiles(tmp_path))["model.embed_tokens.weight"] == (
        "model.embed_tokens.weight"
    )
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["lm_head.weight"] = tensors.pop("model.embed_tokens.weight")
    save_file(tensors, str(tmp_path / "model.safetensors"))
    assert (
        sources(empty_lm(tmp_path, torch.float32), ModelFiles(tmp_path))["model.embed_tokens.weight"]
        == "lm_head.weight"
    )
    # Both are there and may differ: transformers decides.
    tensors["model.embed_tokens.weight"] = tensors["lm_head.weight"] + 1
    save_file(tensors, str(tmp_path / "model.safetensors"))
    assert sources(empty_lm(tmp_path, torch.float32), ModelFiles(tmp_path)) is None


@pytest.mark.parametrize("name", ["qwen 3, a mixture of experts", "mixtral, experts under other names"])
def test_experts_are_found_and_read_by_rows(name, tmp_path):
    torch.manual_seed(0)
    lm = AutoModelForCausalLM.from_config(MODELS[name])
    lm.save_pretrained(tmp_path)
    files, whole = ModelFiles(tmp_path), dict(lm.named_parameters())
    found = sources(empty_lm(tmp_path, torch.float32), files)
    experts = {parameter: source for parameter, source in found.items() if isinstance(source, Experts)}
    assert len(experts) == 2 * 2
    for parameter, source in found.items():
        for rows in (slice(None), slice(1, 4), slice(2, 2)):
            out = torch.full_like(whole[parameter][rows], 9.0)
            files.read(source, rows, out)
            assert torch.equal(out, whole[parameter][rows].detach()), parameter


def test_files_that_are_not_the_parameters_are_left_to_transformers(tmp_path):
    AutoModelForCausalLM.from_config(MODELS["qwen 3, a mixture of experts"]).save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    for broken in ("down_proj", "gate_proj"):  # an expert too few; one without its gate
        gone = f"model.layers.1.mlp.experts.3.{broken}.weight"
        save_file(
            {name: tensor for name, tensor in tensors.items() if name != gone}, str(tmp_path / "model.safetensors")
        )
        assert sources(empty_lm(tmp_path, torch.float32), ModelFiles(tmp_path)) is None


def test_pickled_weights_are_refused_with_what_converts_them(tmp_path):
    lm = AutoModelForCausalLM.from_config(MODELS["llama, untied"])
    lm.config.save_pretrained(tmp_path)
    torch.save(lm.state_dict(), tmp_path / "pytorch_model.bin")
    with pytest.raises(ModelError, match=r"found pytorch_model.bin in .*, expected safetensors.*save_pretrained"):
        load_policy(tmp_path)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_rows_are_those_of_the_file(dtype, tmp_path, monkeypatch):
    from tailrace.trainer import sharded_load

    torch.manual_seed(0)
    whole = {
        "matrix": torch.randn(13, 5).to(dtype),
        "vector": torch.randn(7).to(dtype),
        "one": torch.randn(()).to(dtype),
    }
    save_file(whole, str(tmp_path / "model.safetensors"))
    files = ModelFiles(tmp_path)
    assert files.elements == 13 * 5 + 7 + 1
    for block in (1, 100, 1 << 26):
        monkeypatch.setattr(sharded_load, "_BLOCK_BYTES", block)
        for name, rows in (("matrix", slice(3, 11)), ("matrix", slice(13, 13)), ("vector", slice(2, 3))):
            out = torch.full_like(whole[name][rows], 9.0, dtype=torch.float64)
            files.read(name, rows, out)
            assert torch.equal(out, whole[name][rows].double())
        one = torch.zeros((), dtype=torch.float64)
        files.read("one", slice(None), one)
        assert torch.equal(one, whole["one"].double())


def test_damaged_files_are_named(tmp_path):
    save_file({"a": torch.zeros(100)}, str(tmp_path / "model.safetensors"))
    content = (tmp_path / "model.safetensors").read_bytes()
    files = ModelFiles(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(content[:-4])
    with pytest.raises(ModelError, match="the bytes of 'a' end too early"):
        files.read("a", slice(None), torch.zeros(100))
    (tmp_path / "model.safetensors").write_bytes(content[:12])
    with pytest.raises(CheckpointError, match="is damaged"):
        ModelFiles(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "gone.safetensors"}}))
    with pytest.raises(CheckpointError, match=r"gone.safetensors is damaged or missing"):
        ModelFiles(tmp_path)


def with_adapter(rank, world_size, directory, dtype, rendezvous, out: Path):
    """A step of LoRA on a base whose rows were read: the base as it is on this rank, and what was trained."""
    fsdp2: Any = import_module("tailrace.trainer.fsdp2")
    from tailrace.trainer.config import AdapterConfig
    from tailrace.trainer.worker import TrainerWorker

    fsdp2.SMALL_MODEL_PARAMETERS = 0
    config = dataclasses.replace(
        trainer_processes.CONFIG, dtype=dtype, adapter=AdapterConfig(rank=2, alpha=4.0), kl_coefficient=0.1
    )
    with TrainerWorker(directory, config, rank=rank, world_size=world_size, rendezvous=rendezvous) as worker:
        began = {name: tensor.clone() for name, tensor in worker.weights()}
        metrics = [worker.step([trainer_processes.batch(seed)]) for seed in (1, 2)]
        found = {f"before/{name}": tensor for name, tensor in began.items()}
        found |= {f"after/{name}": tensor.clone() for name, tensor in worker.weights()}
        for name, parameter in inside(worker).module.named_parameters():
            if not parameter.requires_grad:
                found["base/" + name.removeprefix("lm.").replace(".base_layer", "")] = parameter.full_tensor()
        found["kl"] = torch.tensor([step["reference_kl"] for step in metrics])
        if rank == 0:
            save_file({name: tensor.contiguous() for name, tensor in found.items()}, str(out))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.cases(1)
def test_an_adapter_is_on_a_base_whose_rows_were_read(dtype, tmp_path):
    pytest.importorskip("peft")
    torch.manual_seed(0)
    lm = AutoModelForCausalLM.from_config(MODELS["llama, tied, scaled positions"])
    lm.save_pretrained(tmp_path / "model")
    out = tmp_path / "out.safetensors"
    trainer_processes.run_all(with_adapter, 2, tmp_path / "model", dtype, f"file://{tmp_path}/meet", out)
    found = load_file(out)
    base = {name.removeprefix("base/"): tensor for name, tensor in found.items() if name.startswith("base/")}
    assert base.keys() == dict(lm.named_parameters()).keys()
    for name, parameter in lm.named_parameters():
        assert torch.equal(base[name], parameter.detach().to(base[name].dtype)), name
        assert base[name].dtype == getattr(torch, dtype)
    trained = [name for name in found if name.startswith("before/")]
    assert len(trained) == 2 * 7 * 2
    assert all(("lora_A" in name) == bool(found[name].any()) for name in trained)
    assert all(
        not torch.equal(found[name], found[name.replace("before", "after")]) for name in trained if "lora_B" in name
    )
    assert float(found["kl"][0]) == pytest.approx(0, abs=1e-6)
    assert float(found["kl"][1]) != 0
