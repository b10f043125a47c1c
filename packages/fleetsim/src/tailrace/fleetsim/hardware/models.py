"""Models: the shape of a decoder-only transformer, and its parameters, bytes and FLOPs."""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any

from tailrace.fleetsim.errors import FleetError
from tailrace.fleetsim.hardware.devices import Count, pick
from tailrace.pipeline.config.options import read_options


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A transformer with grouped-query attention and gated feed-forward layers, dense or a mixture of experts.

    Args:
        ffn: width of the feed-forward layer; in a mixture, of one expert.
        experts: number of experts of each layer; 0 for a dense model.
        experts_per_token: number of experts that a token uses.
        qkv_bias: whether the query, key and value projections have biases (Qwen2).
        head_norm: whether queries and keys are normalised per head (Qwen3).
        tied: whether the output layer is the embedding.
        bytes_per_param: bytes of a parameter for generation; 2 for bf16.
        bytes_per_kv: bytes of a value in the KV cache.

    Raises:
        FleetError: the numbers of heads, or of experts, do not fit together.
    """

    name: str
    layers: Count
    hidden: Count
    ffn: Count
    query_heads: Count
    kv_heads: Count
    head_dim: Count
    vocab: Count
    experts: int = 0
    experts_per_token: int = 0
    qkv_bias: bool = False
    head_norm: bool = False
    tied: bool = False
    bytes_per_param: float = 2.0
    bytes_per_kv: float = 2.0

    def __post_init__(self) -> None:
        if self.query_heads % self.kv_heads:
            raise FleetError(
                f"model {self.name}: found {self.query_heads} query heads for {self.kv_heads} key-value heads, "
                "expected a multiple"
            )
        if self.experts_per_token > self.experts or (self.experts and not self.experts_per_token):
            raise FleetError(
                f"model {self.name}: found {self.experts_per_token} experts for each token, "
                f"expected {'1' if self.experts else '0'} to {self.experts}"
            )

    @property
    def params(self) -> int:
        """Number of all parameters."""
        matrices = self.layers * (
            self._attention_params + self._router_params + self._expert_params * max(1, self.experts)
        )
        biases = (self.query_heads + 2 * self.kv_heads) * self.head_dim if self.qkv_bias else 0
        norms = 2 * self.hidden + (2 * self.head_dim if self.head_norm else 0)
        embeddings = (1 if self.tied else 2) * self.vocab * self.hidden
        return matrices + self.layers * (biases + norms) + embeddings + self.hidden

    @property
    def gemm_params(self) -> int:
        """Number of parameters that a token is multiplied with: without the embedding, and only its experts."""
        return self.dense_gemm_params + (
            self.layers * self.experts_per_token * self._expert_params if self.experts else 0
        )

    @property
    def dense_gemm_params(self) -> int:
        """Number of parameters that every token is multiplied with."""
        feed_forward = self._router_params if self.experts else self._expert_params
        return self.layers * (self._attention_params + feed_forward) + self.vocab * self.hidden

    @property
    def all_expert_params(self) -> int:
        """Number of parameters of all experts of all layers; 0 for a dense model."""
        return self.layers * self.experts * self._expert_params

    @property
    def weight_bytes(self) -> float:
        """Bytes of a version as replicas use it."""
        return self.params * self.bytes_per_param

    @property
    def kv_bytes_per_token(self) -> float:
        """Bytes of a token's keys and values in all layers."""
        return 2 * self.layers * self.kv_heads * self.head_dim * self.bytes_per_kv

    @property
    def weight_tensors(self) -> int:
        """Number of tensors of a checkpoint, which are moved one by one. Each expert has three."""
        feed_forward = 3 * self.experts + 1 if self.experts else 3
        of_layer = 4 + 2 + 3 * self.qkv_bias + 2 * self.head_norm + feed_forward
        return self.layers * of_layer + (2 if self.tied else 3)

    @property
    def attention_flops_per_square_token(self) -> float:
        """FLOPs of a causal forward pass' attention over s tokens, divided by s squared."""
        return 2.0 * self.layers * self.query_heads * self.head_dim

    @property
    def _attention_params(self) -> int:
        return self.hidden * self.head_dim * (2 * self.query_heads + 2 * self.kv_heads)

    @property
    def _expert_params(self) -> int:
        """Number of parameters of one expert of one layer, or of a dense layer's feed-forward part."""
        return 3 * self.hidden * self.ffn

    @property
    def _router_params(self) -> int:
        return self.hidden * self.experts


def model(name: str) -> ModelShape:
    """A model of the table.

    Raises:
        UnknownNameError: the table has no model of this name.
    """
    return pick("model", name, models())


_DENSE, _MIXTURES = ("llama", "mistral", "qwen2", "qwen3"), ("qwen3_moe",)


def shape_of(name: str, config: Mapping[str, Any]) -> ModelShape | None:
    """The shape that a Hugging Face ``config.json`` tells; None for an architecture that is not counted here.

    Raises:
        FleetError: a size is missing or is no number, or sizes do not fit together.
    """
    kind = config.get("model_type")
    if kind not in (*_DENSE, *_MIXTURES):
        return None
    mixture = kind in _MIXTURES
    try:
        heads = int(config["num_attention_heads"])
        return ModelShape(
            name,
            layers=int(config["num_hidden_layers"]),
            hidden=int(config["hidden_size"]),
            ffn=int(config["moe_intermediate_size" if mixture else "intermediate_size"]),
            query_heads=heads,
            kv_heads=int(config.get("num_key_value_heads") or heads),
            head_dim=int(config.get("head_dim") or config["hidden_size"] // heads),
            vocab=int(config["vocab_size"]),
            experts=int(_experts(config)) if mixture else 0,
            experts_per_token=int(config["num_experts_per_tok"]) if mixture else 0,
            qkv_bias=kind.startswith("qwen2"),
            head_norm=kind.startswith("qwen3"),
            tied=bool(config.get("tie_word_embeddings", False)),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise FleetError(f"model {name}: its config.json does not tell its shape: {error!r}") from error


def _experts(config: Mapping[str, Any]) -> Any:
    """Experts of a layer; transformers 5 writes them under another name than Qwen does."""
    return config["num_experts"] if "num_experts" in config else config["num_local_experts"]


@functools.cache
def models() -> Mapping[str, ModelShape]:
    """All models of the table."""
    text = resources.files(__package__).joinpath("models.toml").read_text(encoding="utf-8")
    tables = tomllib.loads(text).items()
    return {name: read_options(ModelShape, {"name": name, **table}, f"models.toml, {name}") for name, table in tables}
