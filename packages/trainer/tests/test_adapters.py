"""LoRA on FSDP2 against plain PEFT: the same losses and gradients, and checkpoints of kilobytes that PEFT loads."""

import dataclasses
import gc
import sys
import weakref
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, MixtralConfig, Qwen2MoeConfig, Qwen3Config, Qwen3MoeConfig

from tailrace.trainer import CheckpointError, ModelError, TrainerConfig, TrainerConfigError, load_weights_file
from tailrace.trainer import fsdp2 as fsdp2_module
from tailrace.trainer.adapters import Adapter, check_adapter, linear_layers
from tailrace.trainer.backend import check_backend
from tailrace.trainer.backends import fsdp2
from tailrace.trainer.checkpoint_files import verify
from tailrace.trainer.config import SMALL_MODEL_PARAMETERS, AdapterConfig
from tailrace.trainer.small_model import build_model
from tailrace.trainer.testing import BackendContract, inside, make_experiences, reference_loss
from tailrace.trainer.weights_file import weights_sha256
from tailrace.trainer.worker import TrainerWorker

sys.path.insert(0, str(Path(__file__).parent))
import trainer_processes
from dear_contract_tests import DEAR

pytestmark = [pytest.mark.long, pytest.mark.skipif(find_spec("peft") is None, reason="needs PEFT")]
VOCAB = 31
ADAPTER = AdapterConfig(rank=4, alpha=8.0)
CONFIG = TrainerConfig(lr=0.01, device="cpu", threads=1, grad_clip_norm=0.0, adapter=ADAPTER, seed=3)
SEVEN = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    root = tmp_path_factory.mktemp("base")
    return build_model(root / "model", vocab_size=VOCAB, hidden=16, layers=2, head_dim=8, mlp=32)


def batch(seed):
    return make_experiences(3, 4, vocab_size=VOCAB, seed=seed)


def plain(model):
    """PEFT's own model."""
    import peft

    base = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    config = peft.LoraConfig(r=4, lora_alpha=8.0, target_modules=SEVEN, task_type="CAUSAL_LM")
    return peft.get_peft_model(base, config)


def saved(peft_model):
    return {name.replace(".default", ""): value for name, value in peft_model.named_parameters() if value.requires_grad}


@pytest.mark.inherited(deep=DEAR)
class TestFsdp2WithAnAdapter(BackendContract):
    config = CONFIG

    def build(self, model_path, config):
        return fsdp2(model_path, config, rank=0, world_size=1, rendezvous=None)


@pytest.mark.parametrize("whole", [True, False])
def test_losses_and_gradients_are_those_of_plain_peft(model, whole, monkeypatch):
    if not whole:  # layer by layer
        monkeypatch.setattr(fsdp2_module, "SMALL_MODEL_PARAMETERS", 0)
    reference = plain(model)
    expected = saved(reference)
    draw = torch.Generator().manual_seed(11)
    with TrainerWorker(model, CONFIG) as worker:
        mine = inside(worker).parameters
        assert mine.keys() == expected.keys()
        begun = dict(worker.weights())
        for name, tensor in expected.items():
            if "lora_B" in name:  # zero, so that A would have no gradient
                assert not begun[name].any()
                inside(worker).local[name].copy_(torch.randn(tensor.shape, generator=draw) * 0.1)
            else:  # uniform, as PEFT draws it
                assert abs(float(begun[name].std() / tensor.detach().std()) - 1) < 0.3
            tensor.data.copy_(mine[name].full_tensor())
        seen = {}
        update = worker._model.update

        def spy(lr):
            seen.update({name: shard.grad.clone() for name, shard in inside(worker).local.items()})
            update(lr)

        worker._model.update = spy
        found = worker.step([batch(1)])
        loss = reference_loss(reference, batch(1), CONFIG)
        loss.backward()
        assert abs(found["loss"] - loss.item()) < 1e-6
        for name, tensor in expected.items():
            assert tensor.grad.abs().max() > 0
            torch.testing.assert_close(seen[name], tensor.grad, atol=2e-7, rtol=1e-4, msg=name)


def test_the_same_seed_gives_the_same_adapter_however_the_base_is_loaded(model, monkeypatch):
    found = []
    for most in (SMALL_MODEL_PARAMETERS, 0):  # whole, and by rows into a model that had no memory
        monkeypatch.setattr(fsdp2_module, "SMALL_MODEL_PARAMETERS", most)
        with TrainerWorker(model, CONFIG) as worker:
            found.append({name: tensor.clone() for name, tensor in worker.weights()})
    assert all(torch.equal(tensor, found[1][name]) for name, tensor in found[0].items())
    with TrainerWorker(model, dataclasses.replace(CONFIG, seed=4)) as worker:
        assert not any(torch.equal(tensor, found[0][name]) for name, tensor in worker.weights() if "lora_A" in name)


def test_no_rows_in_float32_stay_beside_a_base_in_bfloat16(model, monkeypatch):
    """They are twice the base's bytes, on the device; Python looks for such cycles as good as never."""
    monkeypatch.setattr(fsdp2_module, "SMALL_MODEL_PARAMETERS", 0)
    read, rows = fsdp2_module.Fsdp2Model._own_rows, []

    def spied(*arguments):
        found = read(*arguments)
        rows.append(weakref.ref(found._local_tensor))
        return found

    monkeypatch.setattr(fsdp2_module.Fsdp2Model, "_own_rows", spied)
    gc.disable()
    try:
        with TrainerWorker(model, dataclasses.replace(CONFIG, dtype="bfloat16")):
            assert rows
            assert not any(row() is not None for row in rows)
    finally:
        gc.enable()


@pytest.mark.parametrize(
    "kind", [Qwen3Config, Qwen3MoeConfig, Qwen2MoeConfig, MixtralConfig], ids=lambda kind: kind.model_type
)
@pytest.mark.cases(2)
def test_the_layers_that_files_tell_are_those_that_the_model_has(kind, tmp_path):
    """The files of a mixture have a matrix for each expert and for the router, which are no linear layers of the model."""
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
    experts = {"moe_intermediate_size": 8, "shared_expert_intermediate_size": 8, "num_experts_per_tok": 2}
    config = kind(vocab_size=VOCAB, num_key_value_heads=1, **sizes, **experts)
    config.num_local_experts = config.num_experts = 4
    lm = AutoModelForCausalLM.from_config(config)
    lm.save_pretrained(tmp_path)
    linear = [name for name, layer in lm.named_modules() if isinstance(layer, torch.nn.Linear) and name != "lm_head"]
    assert set(linear_layers(tmp_path)) == {name.rpartition(".")[2] for name in linear}
    if kind is Qwen3MoeConfig:
        with pytest.raises(TrainerConfigError, match=r"found adapter targets gate_proj, which the model lacks"):
            check_adapter(AdapterConfig(rank=4, targets=("gate_proj",)), tmp_path)


def test_the_base_is_frozen_and_only_the_adapter_has_an_optimizer(model):
    with TrainerWorker(model, CONFIG) as worker:
        base = {name: value for name, value in inside(worker).module.named_parameters() if not value.requires_grad}
        before = {name: value.full_tensor().clone() for name, value in base.items()}
        for seed in (1, 2):
            worker.step([batch(seed)])
        for name, value in base.items():
            assert torch.equal(value.full_tensor(), before[name]), name
            assert value.grad is None
        names = list(inside(worker).parameters)
        assert len(names) == 2 * len(SEVEN) * 2
        assert len(inside(worker).optimizer.state) == len(names)


@pytest.mark.parametrize("whole", [True, False])
def test_the_kl_reference_is_the_base_without_a_copy_of_it(model, whole, monkeypatch):
    if not whole:
        monkeypatch.setattr(fsdp2_module, "SMALL_MODEL_PARAMETERS", 0)
    config = dataclasses.replace(CONFIG, kl_coefficient=0.1)
    reference = plain(model)
    draw = torch.Generator().manual_seed(12)
    with TrainerWorker(model, config) as worker:
        parameters = sum(value.numel() for value in inside(worker).module.parameters())
        for name, tensor in saved(reference).items():
            if "lora_B" in name:
                inside(worker).local[name].copy_(torch.randn(tensor.shape, generator=draw) * 0.1)
            tensor.data.copy_(inside(worker).parameters[name].full_tensor())
        found = worker.step([batch(1)])
        base = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
        assert found["reference_kl"] > 1e-5
        assert abs(found["loss"] - reference_loss(reference, batch(1), config, base).item()) < 1e-6
        assert sum(value.numel() for value in inside(worker).module.parameters()) == parameters


def test_a_checkpoint_is_small_and_peft_loads_and_merges_it_as_we_do(model, tmp_path):
    with TrainerWorker(model, CONFIG) as worker:
        for seed in (1, 2, 3):
            worker.step([batch(seed)])
        directory = worker.save(tmp_path / "3", 3).result(60)
        trained = {name: tensor.clone() for name, tensor in worker.weights()}
    manifest = verify(directory)
    assert manifest["adapter"] == {"rank": 4, "alpha": 8.0, "targets": "all-linear"}
    assert manifest["base"] == {"path": str(model.absolute()), "sha256": weights_sha256(model)}
    assert not list(directory.glob("model*.safetensors"))
    assert dict(load_weights_file(directory)).keys() == trained.keys()
    assert len(weights_sha256(directory)) == 64
    base = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    from peft import PeftModel

    loaded = PeftModel.from_pretrained(base, directory)
    for name, tensor in saved(loaded).items():
        assert torch.equal(tensor, trained[name]), name
    expected = loaded.merge_and_unload().state_dict()
    adapter = Adapter(dict(load_weights_file(directory)), ADAPTER)
    merged = dict(adapter.merged(load_weights_file(model)))
    assert max(float((merged[name] - expected[name]).abs().max()) for name in merged) <= 2e-6
    assert any(not torch.equal(tensor, merged[name]) for name, tensor in load_weights_file(model))
    with pytest.raises(ModelError, match=r"found an adapter in .*export --merge"):
        TrainerWorker(directory, TrainerConfig(device="cpu"))


@pytest.mark.parametrize("other", [AdapterConfig(), AdapterConfig(rank=8), dataclasses.replace(ADAPTER, alpha=4.0)])
def test_a_checkpoint_of_another_adapter_is_refused_and_changes_nothing(model, tmp_path, other):
    with TrainerWorker(model, CONFIG) as worker:
        worker.step([batch(1)])
        worker.save(tmp_path / "1", 1).result(60)
    with TrainerWorker(model, dataclasses.replace(CONFIG, adapter=other)) as worker:
        before = {name: tensor.clone() for name, tensor in worker.weights()}
        with pytest.raises(
            CheckpointError, match=r"found a checkpoint of an adapter of rank 4, alpha 8\.0 on all-linear, exp"
        ):
            worker.load(tmp_path / "1")
        for name, tensor in worker.weights():
            assert torch.equal(tensor, before[name])
        worker.save(tmp_path / "whole", 2).result(60)
    if not other.rank:
        with (
            TrainerWorker(model, CONFIG) as worker,
            pytest.raises(CheckpointError, match="found a checkpoint of no adapter"),
        ):
            worker.load(tmp_path / "whole")


def test_a_newer_adapter_stands_beside_the_optimizer_of_a_checkpoint(model, tmp_path):
    with TrainerWorker(model, CONFIG) as worker:
        worker.step([batch(1)])
        worker.save(tmp_path / "1", 1).result(60)
        worker.step([batch(2)])
        newer = {name: tensor.clone() for name, tensor in worker.weights()}
    with TrainerWorker(model, CONFIG) as worker:
        assert worker.load(tmp_path / "1", newer) == 1
        for name, tensor in worker.weights():
            assert torch.equal(tensor, newer[name])
        assert worker.steps == 1


def test_a_checkpoint_of_another_base_is_refused(model, tmp_path):
    other = build_model(tmp_path / "other", vocab_size=VOCAB, hidden=16, layers=2, head_dim=8, mlp=32, seed=9)
    with TrainerWorker(model, CONFIG) as worker:
        worker.save(tmp_path / "1", 1).result(60)
    with TrainerWorker(other, CONFIG) as worker, pytest.raises(CheckpointError, match="a base with the digest"):
        worker.load(tmp_path / "1")


@pytest.mark.parametrize("dtype", ["bfloat16", "float64"])
def test_other_dtypes(model, dtype):
    with TrainerWorker(model, dataclasses.replace(CONFIG, dtype=dtype)) as worker:
        wide = torch.float64 if dtype == "float64" else torch.float32
        kinds = {(value.requires_grad, value.dtype) for value in inside(worker).module.parameters()}
        assert kinds == {(True, wide), (False, getattr(torch, dtype))}
        before = {name: tensor.clone() for name, tensor in worker.weights()}
        assert worker._model.shares_prompts
        for seed in (1, 2):
            worker.step([batch(seed)])
        assert any(not torch.equal(tensor, before[name]) for name, tensor in worker.weights())
        assert {tensor.dtype for _, tensor in worker.weights()} == {getattr(torch, dtype)}


@pytest.mark.deep
def test_two_ranks_cells_and_streams_train_what_one_process_does(tmp_path):
    # Sizes and a rank that do not divide evenly between two ranks.
    model = build_model(tmp_path / "model", vocab_size=VOCAB, hidden=15, layers=1, heads=2, head_dim=6, mlp=17)
    config = dataclasses.replace(trainer_processes.CONFIG, adapter=AdapterConfig(rank=3))
    for name in ("1", "2", "plain", "cells"):
        (tmp_path / name).mkdir()
    trainer_processes.train(0, 1, model, None, tmp_path / "1", config)
    trainer_processes.run_all(trainer_processes.train, 2, model, f"file://{tmp_path}/meet", tmp_path / "2", config)
    compare(tmp_path / "1", tmp_path / "2")
    trainer_processes.run_all(trainer_processes.stream, 1, 1, None, model, None, tmp_path / "plain", config)
    meet = f"file://{tmp_path}/cells-meet"
    trainer_processes.run_all(trainer_processes.stream, 2, 2, (4, 1), model, meet, tmp_path / "cells", config)
    compare(tmp_path / "plain", tmp_path / "cells")
    assert not list((tmp_path / "2" / "checkpoint").glob("model*"))
    assert load_file(tmp_path / "2" / "checkpoint" / "adapter_model.safetensors").keys() == {
        key.removeprefix("weight/")
        for key in load_file(tmp_path / "2" / "result.safetensors")
        if key.startswith("weight/")
    }
    again = f"file://{tmp_path}/again"
    trainer_processes.run_all(trainer_processes.resume_adapter, 2, model, again, tmp_path / "2", config)
    after = load_file(tmp_path / "2" / "result.safetensors")
    for name, tensor in load_file(tmp_path / "2" / "resumed.safetensors").items():
        assert torch.equal(tensor, after[name]), name


def compare(one, other):
    one, other = (load_file(root / "result.safetensors") for root in (one, other))
    assert one.keys() == other.keys()
    assert sum(float(value.abs().sum()) for key, value in one.items() if key.startswith("gradient/")) > 0.1
    for key in one:
        absolute = 1e-6 if key.startswith(("gradient/0", "gradient/base")) else 1e-4
        torch.testing.assert_close(other[key], one[key], atol=absolute, rtol=1e-4, msg=key)


def test_what_cannot_be_is_named_before_a_run_starts(model, monkeypatch):
    with pytest.raises(TrainerConfigError, match="found adapter rank = -1"):
        AdapterConfig(rank=-1)
    with pytest.raises(TrainerConfigError, match="found adapter targets = 'q_proj'"):
        AdapterConfig(rank=1, targets="q_proj")
    assert sorted(linear_layers(model)) == sorted(SEVEN)
    for directory in (model, None):
        assert sorted(check_adapter(ADAPTER, directory)) == sorted(SEVEN)
    assert list(check_adapter(AdapterConfig(rank=2, targets=("v_proj",)), model)) == ["v_proj"]
    assert check_adapter(AdapterConfig(), None) == ()
    wrong = AdapterConfig(rank=2, targets=("q_proj", "c_attn"))
    for directory in (model, None):
        with pytest.raises(
            TrainerConfigError, match="targets c_attn, which the model lacks; expected 'all-linear', or some"
        ):
            check_adapter(wrong, directory)
    with monkeypatch.context() as patched:
        patched.setattr("tailrace.contracts.plugins.load", lambda *_: print)
        with pytest.raises(
            TrainerConfigError, match="an adapter of rank 4 with the backend 'other', which trains none"
        ):
            check_backend("other", CONFIG, 1)
    with pytest.raises(TrainerConfigError, match="targets c_attn"):
        TrainerWorker(model, dataclasses.replace(CONFIG, adapter=wrong))
