"""What the converters need of a Hugging Face model config, read from its dict (`config.to_dict()`, or `config.json`).

Of Qwen2, Qwen2-MoE, Qwen3 and Qwen3-MoE checkpoints these are the tensors themselves.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from tailrace.paramserver.errors import LayoutInvalid
from tailrace.paramserver.layout.sharding import GlobalTensor


class DecoderShape(NamedTuple):
    """Sizes of a decoder.

    Args:
        layers: number of layers.
        heads: query heads.
        kv_heads: key and value heads.
        head_dim: rows of a head.
        experts: number of experts in a layer; 0 for a dense model.
    """

    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    experts: int


def model_shape(config: Mapping[str, Any]) -> DecoderShape:
    """The sizes in a config.

    Raises:
        LayoutInvalid: one is missing or is no positive integer.
    """
    heads = size(config, "num_attention_heads")
    kv_heads = size(config, "num_key_value_heads") if config.get("num_key_value_heads") else heads
    head_dim = size(config, "head_dim") if config.get("head_dim") else size(config, "hidden_size") // heads
    return DecoderShape(size(config, "num_hidden_layers"), heads, kv_heads, head_dim, expert_count(config))


def expert_count(config: Mapping[str, Any]) -> int:
    """Experts in a layer: `num_experts` in checkpoints, `num_local_experts` in dicts that transformers 5 makes; or 0."""
    # Dense configs of some models carry a field too, as 0 or None.
    keys = [key for key in ("num_experts", "num_local_experts") if config.get(key)]
    return size(config, keys[0]) if keys else 0


def size(config: Mapping[str, Any], key: str) -> int:
    """A positive integer of a config.

    Raises:
        LayoutInvalid: it is missing or something else.
    """
    value = config.get(key)
    if type(value) is not int or value < 1:
        raise LayoutInvalid(f"config {key}: found {str(value)[:40]!r}, expected a positive integer")
    return value


def is_tied(tensors: Iterable[GlobalTensor]) -> bool:
    """Whether a model has no output layer of its own: it uses the embedding."""
    return all(tensor.name != "lm_head.weight" for tensor in tensors)


def rank_names(ranks: Iterable[str] | None, count: int) -> list[str]:
    """The names of the ranks, `rank0`, `rank1`, ... by default.

    Raises:
        LayoutInvalid: they are not as many as the parallel dimensions make, or repeat.
    """
    names = [f"rank{number}" for number in range(count)] if ranks is None else list(ranks)
    if len(names) != count or len(set(names)) != count:
        raise LayoutInvalid(f"ranks: found {len(names)} names, {len(set(names))} of them different, expected {count}")
    return names


def positive(**sizes: int) -> None:
    """Check the sizes of parallel dimensions.

    Raises:
        LayoutInvalid: one is not a positive integer.
    """
    for name, value in sizes.items():
        if type(value) is not int or value < 1:
            raise LayoutInvalid(f"{name}: found {value!r}, expected an integer from 1")


_MODELS = ("qwen2", "qwen2_moe", "qwen3", "qwen3_moe")


def qwen_tensors(config: Mapping[str, Any], dtype: str = "bfloat16") -> tuple[GlobalTensor, ...]:
    """The tensors of a checkpoint, experts one by one. A tied output layer is left out.

    Args:
        config: the Hugging Face config, as a dict.
        dtype: the dtype of all tensors.

    Raises:
        LayoutInvalid: another model, or a size is missing in the config.
    """
    model = config.get("model_type")
    if model not in _MODELS:
        raise LayoutInvalid(f"config model_type: found {str(model)[:40]!r}, expected one of {', '.join(_MODELS)}")
    hidden, rows = size(config, "hidden_size"), size(config, "vocab_size")
    found = [("model.embed_tokens.weight", (rows, hidden)), ("model.norm.weight", (hidden,))]
    if not config.get("tie_word_embeddings", False):
        found.append(("lm_head.weight", (rows, hidden)))
    for layer in range(size(config, "num_hidden_layers")):
        for name, shape in (*_attention(config, model, hidden), *_mlp(config, model, hidden, layer)):
            found.append((f"model.layers.{layer}.{name}", shape))
    return tuple(GlobalTensor(name, dtype, shape) for name, shape in found)


def _attention(config: Mapping[str, Any], model: str, hidden: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    shape = model_shape(config)
    yield "input_layernorm.weight", (hidden,)
    yield "post_attention_layernorm.weight", (hidden,)
    yield "self_attn.o_proj.weight", (hidden, shape.heads * shape.head_dim)
    # Qwen2 always has these biases, Qwen3 as its config says.
    biased = config.get("attention_bias", False) if model.startswith("qwen3") else config.get("qkv_bias", True)
    for role, heads in (("q", shape.heads), ("k", shape.kv_heads), ("v", shape.kv_heads)):
        yield f"self_attn.{role}_proj.weight", (heads * shape.head_dim, hidden)
        if biased:
            yield f"self_attn.{role}_proj.bias", (heads * shape.head_dim,)
    if model.startswith("qwen3"):
        if biased:
            yield "self_attn.o_proj.bias", (hidden,)
        yield "self_attn.q_norm.weight", (shape.head_dim,)
        yield "self_attn.k_norm.weight", (shape.head_dim,)


def _mlp(config: Mapping[str, Any], model: str, hidden: int, layer: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    sparse = model.endswith("moe") and layer not in (config.get("mlp_only_layers") or ())
    if not sparse or (layer + 1) % config.get("decoder_sparse_step", 1):
        yield from _gated("mlp", hidden, size(config, "intermediate_size"))
        return
    experts = model_shape(config).experts or size(config, "num_experts")  # a typed error where there are none
    yield "mlp.gate.weight", (experts, hidden)
    for expert in range(experts):
        yield from _gated(f"mlp.experts.{expert}", hidden, size(config, "moe_intermediate_size"))
    if model == "qwen2_moe":
        yield from _gated("mlp.shared_expert", hidden, size(config, "shared_expert_intermediate_size"))
        yield "mlp.shared_expert_gate.weight", (1, hidden)


def _gated(prefix: str, hidden: int, inner: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield f"{prefix}.gate_proj.weight", (inner, hidden)
    yield f"{prefix}.up_proj.weight", (inner, hidden)
    yield f"{prefix}.down_proj.weight", (hidden, inner)
