"""Local parameters beside the tensor operations that frameworks use to make them."""

import pytest

from tailrace.paramserver.layout import Layout, copy, message, reshard_plan
from tailrace.paramserver.layout.megatron import from_megatron
from tailrace.paramserver.layout.model_config import qwen_tensors
from tailrace.paramserver.layout.vllm import from_vllm

from .random_layouts import empty_memory
from .small_models import DENSE, MOE, SHARED, TIED

torch = pytest.importorskip("torch")


def weights(config):
    generator = torch.Generator().manual_seed(7)
    return {name: torch.randn(shape, generator=generator) for name, _, shape in qwen_tensors(config, "float32")}


def local_parameters(layout, model):
    """Every rank's parameters, filled from the model under a layout; what nothing fills is 0."""
    source = Layout.replicated(layout.tensors, ["full"])
    plan = reshard_plan(source, layout)
    found = {}
    for rank, shard in layout.shards.items():
        memory = empty_memory(shard, 0)
        copy(message(plan, "full", rank), model, memory)
        found[rank] = {
            buffer.name: torch.frombuffer(memory[buffer.name], dtype=torch.float32).reshape(buffer.shape)
            for buffer in shard.buffers
        }
    return found


def equal(found, expected):
    assert found.shape == expected.shape
    assert torch.equal(found, expected)


def padded(tensor, rows):
    return torch.cat([tensor, torch.zeros(rows - tensor.shape[0], *tensor.shape[1:])])


def group_by_group(model, kind, heads, kv_heads, head_dim):
    """Megatron's linear_qkv: for each key head its queries, itself and its value."""
    prefix = "model.layers.2.self_attn."
    rest = model[f"{prefix}q_proj.{kind}"].shape[1:]
    q = model[f"{prefix}q_proj.{kind}"].view(kv_heads, heads // kv_heads, head_dim, *rest)
    k = model[f"{prefix}k_proj.{kind}"].view(kv_heads, 1, head_dim, *rest)
    v = model[f"{prefix}v_proj.{kind}"].view(kv_heads, 1, head_dim, *rest)
    return torch.cat([q, k, v], 1).reshape(-1, *rest)


def test_megatron_dense():
    model = weights(DENSE)
    layout = from_megatron(qwen_tensors(DENSE, "float32"), DENSE, tp=2, pp=2, dp=2, vocabulary_multiple=32)
    local = local_parameters(layout, model)
    assert len(local) == 8
    for part, first, second in ((0, 0, 4), (1, 1, 5)):
        assert layout.shards[f"rank{first}"] is layout.shards[f"rank{first + 2}"]  # data-parallel replicas
        front, back = local[f"rank{first}"], local[f"rank{second}"]
        for kind in ("weight", "bias"):
            fused = group_by_group(model, kind, 8, 2, 2).chunk(2)[part]
            equal(back[f"decoder.layers.0.self_attention.linear_qkv.{kind}"], fused)
        mlp = "model.layers.2.mlp."
        gate, up = (model[f"{mlp}{name}_proj.weight"].chunk(2)[part] for name in ("gate", "up"))
        equal(back["decoder.layers.0.mlp.linear_fc1.weight"], torch.cat([gate, up]))
        equal(back["decoder.layers.0.mlp.linear_fc2.weight"], model[f"{mlp}down_proj.weight"].chunk(2, 1)[part])
        equal(
            back["decoder.layers.0.self_attention.linear_proj.weight"],
            model["model.layers.2.self_attn.o_proj.weight"].chunk(2, 1)[part],
        )
        embedding = padded(model["model.embed_tokens.weight"], 192)  # 150 rows to a multiple of 32 * 2
        equal(front["embedding.word_embeddings.weight"], embedding.chunk(2)[part])
        equal(back["output_layer.weight"], padded(model["lm_head.weight"], 192).chunk(2)[part])
        equal(back["decoder.final_layernorm.weight"], model["model.norm.weight"])
        assert "output_layer.weight" not in front
        assert "embedding.word_embeddings.weight" not in back


@pytest.mark.parametrize("tp", [1, 2, 4, 8])
def test_megatron_fused_attention_also_with_more_ranks_than_groups(tp):
    model = weights(DENSE)
    local = local_parameters(from_megatron(qwen_tensors(DENSE, "float32"), DENSE, tp=tp), model)
    for kind in ("weight", "bias"):
        for part, fused in enumerate(group_by_group(model, kind, 8, 2, 2).chunk(tp)):
            equal(local[f"rank{part}"][f"decoder.layers.2.self_attention.linear_qkv.{kind}"], fused)


def test_megatron_tied_and_interleaved():
    model = weights(TIED)
    tensors = qwen_tensors(TIED, "float32")
    local = local_parameters(from_megatron(tensors, TIED, pp=2, virtual_stages=2, vocabulary_multiple=1), model)
    # Chunks of one layer are dealt out: 0 and 2 to the first stage, 1 and 3 to the second.
    for rank, chunk, layer in (("rank0", 0, 0), ("rank1", 0, 1), ("rank0", 1, 2), ("rank1", 1, 3)):
        equal(
            local[rank][f"model{chunk}.decoder.layers.0.mlp.linear_fc2.weight"],
            model[f"model.layers.{layer}.mlp.down_proj.weight"],
        )
    equal(local["rank0"]["model0.embedding.word_embeddings.weight"], model["model.embed_tokens.weight"])
    equal(local["rank1"]["model1.output_layer.weight"], model["model.embed_tokens.weight"])
    equal(local["rank1"]["model1.decoder.final_layernorm.weight"], model["model.norm.weight"])
    equal(
        local["rank0"]["model0.decoder.layers.0.self_attention.q_layernorm.weight"],
        model["model.layers.0.self_attn.q_norm.weight"],
    )
    one_stage = from_megatron(tensors, TIED)
    assert [buffer.name for buffer, _ in one_stage.shards["rank0"].pieces["model.embed_tokens.weight"]] == [
        "embedding.word_embeddings.weight"
    ]


def test_megatron_experts():
    model = weights(MOE)
    # 8 ranks: attention has tp 2 x dp 4, the experts have etp 1 x ep 4 x 2 replicas.
    layout = from_megatron(qwen_tensors(MOE, "float32"), MOE, tp=2, dp=4, ep=4, etp=1)
    local = local_parameters(layout, model)
    for rank in range(8):
        held = local[f"rank{rank}"]
        prefix = f"model.layers.3.mlp.experts.{rank % 4}."
        gate_up = torch.cat([model[prefix + "gate_proj.weight"], model[prefix + "up_proj.weight"]])
        equal(held["decoder.layers.3.mlp.experts.linear_fc1.weight0"], gate_up)
        equal(held["decoder.layers.3.mlp.experts.linear_fc2.weight0"], model[prefix + "down_proj.weight"])
        assert "decoder.layers.3.mlp.experts.linear_fc1.weight1" not in held
        equal(held["decoder.layers.3.mlp.router.weight"], model["model.layers.3.mlp.gate.weight"])
        equal(
            held["decoder.layers.3.pre_mlp_layernorm.weight"], model["model.layers.3.post_attention_layernorm.weight"]
        )
        # Layer 1 is dense: its norm belongs to the first linear layer.
        equal(
            held["decoder.layers.1.mlp.linear_fc1.layer_norm_weight"],
            model["model.layers.1.post_attention_layernorm.weight"],
        )
    two = local_parameters(from_megatron(qwen_tensors(SHARED, "float32"), SHARED, tp=2), weights(SHARED))
    model = weights(SHARED)
    for part in range(2):
        held, prefix = two[f"rank{part}"], "model.layers.0.mlp."
        for name, local_name in (
            ("experts.3", "experts.linear_fc{}.weight3"),
            ("shared_expert", "shared_experts.linear_fc{}.weight"),
        ):
            gate, up = (model[f"{prefix}{name}.{kind}_proj.weight"].chunk(2)[part] for kind in ("gate", "up"))
            equal(held["decoder.layers.0.mlp." + local_name.format(1)], torch.cat([gate, up]))
            down = model[f"{prefix}{name}.down_proj.weight"].chunk(2, 1)[part]
            equal(held["decoder.layers.0.mlp." + local_name.format(2)], down)


@pytest.mark.parametrize("tp", [1, 2, 4, 8])
def test_vllm_fused_attention_with_repeated_key_heads(tp):
    model = weights(DENSE)
    local = local_parameters(from_vllm(qwen_tensors(DENSE, "float32"), DENSE, tp=tp, replicas=2), model)
    q, k, v = (model[f"model.layers.1.self_attn.{role}_proj.weight"].view(-1, 2, 16) for role in "qkv")
    for rank in range(2 * tp):
        part = rank % tp
        queries = q[part * 8 // tp : (part + 1) * 8 // tp]
        first = part * 2 // tp
        keys = slice(first, first + max(1, 2 // tp))  # 2 key heads: from 4 ranks on, each lies on tp / 2 ranks
        fused = torch.cat([queries, k[keys], v[keys]]).reshape(-1, 16)
        equal(local[f"rank{rank}"]["model.layers.1.self_attn.qkv_proj.weight"], fused)


def test_vllm_experts_one_by_one_and_stacked_are_the_same():
    model = weights(MOE)
    tensors = qwen_tensors(MOE, "float32")
    stacked = {name: value for name, value in model.items() if ".experts." not in name}
    for layer in (0, 2, 3):
        prefix = f"model.layers.{layer}.mlp.experts."
        gate, up, down = (
            torch.stack([model[f"{prefix}{expert}.{kind}_proj.weight"] for expert in range(4)])
            for kind in ("gate", "up", "down")
        )
        stacked[prefix + "gate_up_proj"] = torch.cat([gate, up], 1)
        stacked[prefix + "down_proj"] = down
    from tailrace.paramserver.layout import GlobalTensor

    stacked_tensors = [GlobalTensor(name, "float32", tuple(value.shape)) for name, value in stacked.items()]
    for sizes in (
        {"tp": 2},
        {"tp": 2, "dp": 2},
        {"tp": 2, "expert_parallel": True},
        {"tp": 1, "dp": 3, "expert_parallel": True},
    ):
        one_by_one = local_parameters(from_vllm(tensors, MOE, **sizes), model)
        together = local_parameters(from_vllm(stacked_tensors, MOE, **sizes), stacked)
        for rank, held in one_by_one.items():
            assert held.keys() == together[rank].keys()
            for name in held:
                equal(together[rank][name], held[name])
    # Three ranks share out four experts: two, one, one.
    w13 = "model.layers.2.mlp.experts.routed_experts.w13_weight"
    assert [held[w13].shape[0] for held in one_by_one.values()] == [2, 1, 1]
    equal(one_by_one["rank2"][w13][0, :8], model["model.layers.2.mlp.experts.3.gate_proj.weight"])
    equal(one_by_one["rank2"][w13][0, 8:], model["model.layers.2.mlp.experts.3.up_proj.weight"])


def test_vllm_pipeline_stages():
    from tailrace.paramserver.layout.vllm import vllm_stages

    sizes = lambda layers, stages: [len(chunks[0]) for chunks in vllm_stages(layers, stages)]  # noqa: E731
    assert sizes(8, 4) == [2, 2, 2, 2]
    assert sizes(10, 4) == [2, 3, 3, 2]
    assert sizes(11, 4) == [3, 3, 3, 2]
    model = weights(TIED)
    local = local_parameters(from_vllm(qwen_tensors(TIED, "float32"), TIED, pp=2), model)
    for rank in ("rank0", "rank1"):  # tied: the last stage has the embedding too
        equal(local[rank]["model.embed_tokens.weight"], padded(model["model.embed_tokens.weight"], 192))
    assert "model.layers.2.self_attn.q_norm.weight" in local["rank1"]
    assert "model.layers.2.self_attn.q_norm.weight" not in local["rank0"]
