"""What the arithmetic predicts beside what transformers keeps, and beside known sizes."""

import dataclasses
import json

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config, Qwen3Config, Qwen3MoeConfig

from tailrace.trainer import TrainerConfig
from tailrace.trainer.layout import PackedRow, TrainingSample
from tailrace.trainer.memory import (
    DenseModel,
    MixtureModel,
    _bytes_of_layer,
    _bytes_of_megatron_layer,
    advice,
    read_shape,
    shape_of,
    trainer_memory,
)
from tailrace.trainer.microbatch import to_tensors
from tailrace.trainer.policy_model import Policy
from tailrace.trainer.varlen_attention import use_in

SMALL = {
    "hidden_size": 64,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "intermediate_size": 176,
    "vocab_size": 31,
}
QWEN_7B = {
    "model_type": "qwen2",
    "hidden_size": 3584,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "intermediate_size": 18944,
    "vocab_size": 152064,
    "tie_word_embeddings": False,
}
BFLOAT16 = TrainerConfig(dtype="bfloat16", micro_batch_tokens=4096, shared_prompt_tokens=4096)


def kept(config, layers, dtype, *, masked, packed):
    """Bytes that a forward pass keeps for each token, each storage once, parameters left out."""
    config.num_hidden_layers, config.layer_types = layers, ["full_attention"] * layers
    policy = Policy(AutoModelForCausalLM.from_config(config, dtype=dtype))
    policy.direct_head = True
    policy.train()
    return kept_by(policy, made(dtype, masked=masked, packed=packed, lm=policy.lm))


def made(dtype, *, masked, packed, lm=None):
    """A micro-batch of two rows."""
    samples = [TrainingSample((1,), tuple(token % 31 for token in range(127)), 1.0) for _ in range(2)]
    shared = PackedRow((1,), tuple(samples))
    rows = [shared, shared] if masked else [PackedRow((1,), (sample,)) for sample in samples]
    assert lm is None or use_in(lm) or not packed
    return to_tensors(rows, torch.device("cpu"), dtype, packed=packed)


def kept_by(policy, batch):
    """Bytes that a policy's forward pass keeps for each token."""
    parameters = {parameter.untyped_storage().data_ptr() for parameter in policy.parameters()}
    found = {}

    def keep(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameters:
            found[storage.data_ptr()] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        policy(batch, 1.0, False)
    return sum(storage.nbytes() for storage in found.values()) / batch.input_ids.numel()


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", [LlamaConfig, Qwen2Config, Qwen3Config])
@pytest.mark.cases(8)
def test_a_layer_keeps_what_is_predicted_to_the_byte(kind, dtype, masked, packed):
    config = kind(**SMALL, **({"head_dim": 16} if kind is Qwen3Config else {}))
    of_layers = [kept(config, layers, dtype, masked=masked, packed=packed) for layers in (2, 4)]
    shape = shape_of(config.to_dict())
    predicted = _bytes_of_layer(shape, dtype.itemsize, expanded=masked, packed=packed)
    assert (of_layers[1] - of_layers[0]) / 2 == pytest.approx(predicted, rel=1e-12)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", [Qwen2Config, Qwen3Config])
@pytest.mark.cases(5)
def test_a_layer_of_megatron_keeps_what_is_predicted_to_the_byte(kind, dtype, masked, packed):
    pytest.importorskip("megatron.core", reason="needs tailrace-trainer[megatron]")
    from tailrace.trainer.megatron_gpt import TensorParallelPolicy

    config = kind(**SMALL, **({"head_dim": 16} if kind is Qwen3Config else {}))
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        group, of_layers = torch.distributed.group.WORLD, []
        settings = TrainerConfig(dtype="bfloat16" if dtype is torch.bfloat16 else "float32")
        for layers in (2, 4):
            model = config.to_dict() | {"num_hidden_layers": layers}
            policy = TensorParallelPolicy(model, settings, group, torch.distributed.new_group([0])).train()
            for parameter in policy.parameters():
                torch.nn.init.normal_(parameter, std=0.1)
            of_layers.append(kept_by(policy, made(dtype, masked=masked, packed=packed)))
    finally:
        torch.distributed.destroy_process_group()
    shape, rows = shape_of(config.to_dict()), 1 if masked or packed else 2
    predicted = _bytes_of_megatron_layer(shape, dtype.itemsize, 1, packed=packed, rows=rows)
    assert (of_layers[1] - of_layers[0]) / 2 == pytest.approx(predicted, rel=1e-12)


def test_tensor_parallel_ranks_split_all_but_what_enters_a_layer():
    shape = shape_of(QWEN_7B)
    config = dataclasses.replace(BFLOAT16, logits_budget=1 << 31)  # of all tokens at once
    one, two = (
        trainer_memory(
            shape,
            dataclasses.replace(config, tensor_parallel=tp),
            ranks=2,
            longest=1536,
            gpu=True,
            backend="megatron",
        )
        for tp in (1, 2)
    )
    assert two.parameters == pytest.approx(one.parameters / 2, rel=1e-3)
    assert two.gradients == pytest.approx(4 * shape.parameters / 2, rel=1e-3)
    assert one.optimizer == pytest.approx(two.optimizer, rel=1e-3)  # of two replicas each has half
    assert two.logits == pytest.approx(one.logits / 2, rel=1e-3)
    assert one.activations / 2 < two.activations < one.activations
    limit = (one.peak + two.peak) // 2
    told = advice(shape, config, ranks=2, longest=1536, limit=limit, backend="megatron")
    assert told == "trainer.options.tensor_parallel = 2"


def zero(shape, stage, ranks=4, **changes):
    config = dataclasses.replace(BFLOAT16, zero_stage=stage, **changes)
    return trainer_memory(shape, config, ranks=ranks, longest=1536, gpu=True, backend="deepspeed")


def test_each_stage_of_zero_leaves_a_rank_a_part_of_what_it_names():
    """ZeRO (Rajbhandari et al. 2020, section 5): moments in each stage, gradients from the second on, parameters in 3."""
    shape = shape_of(QWEN_7B)
    count = shape.parameters
    two, three = zero(shape, 2), zero(shape, 3)
    assert two.state == pytest.approx(2 * count + (4 + 4 + 8) * count / 4, rel=1e-6)
    assert three.state == pytest.approx((2 + 4 + 4 + 8) * count / 4, rel=1e-6)
    one, other = (zero(shape, stage, dtype="float32") for stage in (1, 2))
    assert one.state == pytest.approx((4 + 4) * count + (4 + 8) * count / 4, rel=1e-6)  # gradients whole
    assert other.state == pytest.approx(4 * count + (4 + 4 + 8) * count / 4, rel=1e-6)
    assert (two.gathered, three.gathered) == (0, 2 * 10**9)
    assert zero(shape, None) == two
    limit = (two.peak + three.peak) // 2
    told = advice(shape, BFLOAT16, ranks=4, longest=1536, limit=limit, backend="deepspeed")
    assert told == "trainer.options.zero_stage = 3"
    critic = zero(shape, 3, loss="ppo")
    assert critic.state - three.state == pytest.approx((2 + 4 + 8) * shape.critic_parameters / 4, rel=1e-6)
    reference = zero(shape, 3, kl_coefficient=0.1)
    assert reference.state - three.state == 2 * count  # whole on each rank


@pytest.mark.parametrize("kind", [LlamaConfig, Qwen2Config, Qwen3Config])
@pytest.mark.parametrize("tied", [False, True])
def test_parameters_are_those_of_the_model(kind, tied, tmp_path):
    config = kind(**SMALL, num_hidden_layers=3, tie_word_embeddings=tied)
    config.architectures = [kind.__name__.replace("Config", "ForCausalLM")]
    config.save_pretrained(tmp_path)
    with torch.device("meta"):
        expected = sum(parameter.numel() for parameter in AutoModelForCausalLM.from_config(config).parameters())
    assert read_shape(tmp_path).parameters == expected


MIXTURE = {**SMALL, "head_dim": 16, "moe_intermediate_size": 48, "num_experts": 6, "num_experts_per_tok": 3}


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.cases(3)
def test_a_layer_of_a_mixture_keeps_what_is_predicted(dtype, masked, packed):
    """But for where each expert's tokens begin, a number for each expert."""
    config = Qwen3MoeConfig(**MIXTURE)
    of_layers = [kept(config, layers, dtype, masked=masked, packed=packed) for layers in (2, 4)]
    shape = shape_of(config.to_dict())
    predicted = _bytes_of_layer(shape, dtype.itemsize, expanded=masked, packed=packed)
    assert 0 <= (of_layers[1] - of_layers[0]) / 2 - predicted < 0.2


@pytest.mark.parametrize("tied", [False, True])
def test_parameters_of_a_mixture_are_those_of_the_model(tied):
    config = Qwen3MoeConfig(**MIXTURE, num_hidden_layers=3, tie_word_embeddings=tied)
    with torch.device("meta"):
        expected = sum(parameter.numel() for parameter in AutoModelForCausalLM.from_config(config).parameters())
    assert shape_of(config.to_dict()).parameters == expected


def test_a_mixture_with_layers_that_are_none_is_not_counted():
    config = {
        **QWEN_7B,
        "model_type": "qwen3_moe",
        "moe_intermediate_size": 8,
        "num_experts": 2,
        "num_experts_per_tok": 1,
    }
    assert shape_of(config | {"mlp_only_layers": [0]}) is None
    assert shape_of(config | {"decoder_sparse_step": 2}) is None
    assert isinstance(shape_of(config | {"mlp_only_layers": []}), MixtureModel)


def test_7b_on_four_gpus():
    shape = shape_of(QWEN_7B)
    assert shape.parameters == 7_615_616_512
    found = trainer_memory(shape, BFLOAT16, ranks=4, longest=1536, gpu=True)
    assert found.state == pytest.approx(16 * shape.parameters / 4, rel=1e-6)
    # 225.6 kB per token and layer, measured at an eighth of the width without a mask and scaled
    assert _bytes_of_layer(shape, 2, expanded=False) == pytest.approx(225.6e3, rel=0.01)
    assert found.activations < 0.2 * 28 * 4096 * 225.6e3
    assert found.peak < 60e9
    all_kept = dataclasses.replace(BFLOAT16, activation_checkpointing="off", micro_batch_tokens=8192)
    died = trainer_memory(shape, all_kept, ranks=4, longest=1536, gpu=True)
    assert died.activations == pytest.approx(51.7e9, rel=0.1)
    assert died.peak > 85.5e9  # as a review found: it dies in step 2


def test_the_advice_is_a_setting_that_fits():
    shape = shape_of(QWEN_7B)
    limit = 78_500_000_000

    def told(**options):
        return advice(shape, dataclasses.replace(BFLOAT16, **options), ranks=4, longest=1536, limit=limit)

    assert (
        told(activation_checkpointing="off", micro_batch_tokens=8192)
        == 'trainer.options.activation_checkpointing = "on"'
    )
    assert told(micro_batch_tokens=65536).startswith("trainer.options.micro_batch_tokens = ")
    tokens = int(told(micro_batch_tokens=65536).rpartition(" ")[2])
    fewer = dataclasses.replace(BFLOAT16, micro_batch_tokens=tokens)
    assert trainer_memory(shape, fewer, ranks=4, longest=1536, gpu=True).peak <= limit
    of_32b = dataclasses.replace(shape, hidden=5120, layers=64, heads=40, kv_heads=8, mlp=27648)
    assert advice(of_32b, BFLOAT16, ranks=4, longest=1536, limit=limit) == "trainer.processes = 16"
    on_two = trainer_memory(
        shape, dataclasses.replace(BFLOAT16, offload=("optimizer",)), ranks=2, longest=1536, gpu=True
    )
    assert (
        advice(shape, BFLOAT16, ranks=2, longest=1536, limit=on_two.peak) == 'trainer.options.offload = ["optimizer"]'
    )
    assert on_two.peak == on_two.state  # what passes need beside weights and gradients is less than the moments
    assert "adapter" in advice(of_32b, BFLOAT16, ranks=4, longest=1536, limit=10**9)


@pytest.mark.parametrize("backend", ["fsdp2", "deepspeed", "megatron"])
def test_the_advice_as_a_whole_is_enough_where_activations_are_kept(backend):
    shape, config = shape_of(QWEN_7B), dataclasses.replace(BFLOAT16, activation_checkpointing="off")
    told = set()
    for limit in range(20_000_000_000, 140_000_000_000, 4_000_000_000):
        said = advice(shape, config, ranks=4, longest=4096, limit=limit, backend=backend)
        told.add(said)
        if "trainer." not in said or "smaller model" in said:
            continue
        settings = dict(one.split(" = ") for one in said.replace("trainer.options.", "").split(", "))
        ranks = int(settings.pop("trainer.processes", "4"))
        changes = {name: json.loads(value) for name, value in settings.items()}
        changed = dataclasses.replace(config, **changes)
        assert trainer_memory(shape, changed, ranks=ranks, longest=4096, gpu=True, backend=backend).peak <= limit, said
    assert any(said.count(" = ") > 1 for said in told)


def test_a_critic_has_a_state_of_its_own_but_no_output_layer():
    for tied in (False, True):
        shape = shape_of(QWEN_7B | {"tie_word_embeddings": tied})
        streams = {"advantages": "gae", "advantages_options": {"whiten": False}}
        plain, with_critic, streamed = (
            trainer_memory(shape, dataclasses.replace(BFLOAT16, **options), ranks=4, longest=1536, gpu=True)
            for options in ({}, {"loss": "ppo"}, {"loss": "ppo"} | streams)
        )
        body = shape.layers * shape.layer_parameters + shape.hidden * (shape.vocabulary + 2)
        assert with_critic.state - plain.state == pytest.approx(12 * body / 4, rel=1e-6)
        assert streamed.state - plain.state == pytest.approx(16 * body / 4, rel=1e-6)  # both gradients at once
        assert with_critic.peak - plain.peak == with_critic.state - plain.state


def test_a_single_rank_has_no_layer_on_its_way():
    shape = DenseModel(1024, 12, 16, 16, 64, 3072, 8192, tied=True, head_norms=True, biases=False)
    alone, of_two = (trainer_memory(shape, TrainerConfig(), ranks=ranks).gathered for ranks in (1, 2))
    assert alone == 4 * (shape.outer_parameters + shape.layer_parameters)
    assert of_two - alone == 4 * 3 * shape.layer_parameters


def test_more_of_anything_never_takes_less():
    shape = DenseModel(64, 3, 8, 2, 8, 176, 31, tied=True, head_norms=True, biases=False)
    base = trainer_memory(shape, TrainerConfig(), ranks=2).peak
    assert trainer_memory(shape, TrainerConfig(micro_batch_tokens=4096), ranks=2).peak > base
    assert trainer_memory(shape, TrainerConfig(), ranks=1).peak > base
    assert trainer_memory(shape, TrainerConfig(kl_coefficient=0.1), ranks=2).peak > base
    assert trainer_memory(shape, TrainerConfig(activation_checkpointing="on"), ranks=2).peak < base
