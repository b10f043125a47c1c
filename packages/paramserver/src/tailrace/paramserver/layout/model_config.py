"""What the converters need of a Hugging Face model config, read from its dict (`config.to_dict()`, or `config.json`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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
