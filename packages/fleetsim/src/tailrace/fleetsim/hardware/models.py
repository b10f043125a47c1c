"""Models: the shape of a decoder-only transformer, and what follows from it in parameters, bytes and FLOPs."""

from __future__ import annotations

import functools
import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from importlib import resources
from pathlib import Path
from typing import Any

from tailrace.fleetsim.errors import FleetError, HardwareFileError
from tailrace.fleetsim.hardware.tables import Table, pick


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A transformer with grouped-query attention and gated feed-forward layers, dense or a mixture of experts.

    Args:
        ffn: width of the feed-forward layer, of one expert in a mixture.
        experts: of each layer; 0 for a dense model.
        experts_per_token: experts that a token goes through.
        qkv_bias: the query, key and value projections have biases (Qwen2).
        head_norm: queries and keys are normalised per head (Qwen3).
        tied: the output layer is the embedding.
        bytes_per_param: of the weights that generate; 2 is bf16.
        bytes_per_kv: of a value in the KV cache.

    Raises:
        FleetError: heads or experts do not go together.
    """

    name: str
    layers: int
    hidden: int
    ffn: int
    query_heads: int
    kv_heads: int
    head_dim: int
    vocab: int
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
        """All parameters."""
        matrices = self.layers * (
            self._attention_params + self._router_params + self._expert_params * max(1, self.experts)
        )
        biases = (self.query_heads + 2 * self.kv_heads) * self.head_dim if self.qkv_bias else 0
        norms = 2 * self.hidden + (2 * self.head_dim if self.head_norm else 0)
        embeddings = (1 if self.tied else 2) * self.vocab * self.hidden
        return matrices + self.layers * (biases + norms) + embeddings + self.hidden

    @property
    def gemm_params(self) -> int:
        """Parameters that a token is multiplied with: without the embedding, with only the experts it goes through."""
        return self.dense_gemm_params + (
            self.layers * self.experts_per_token * self._expert_params if self.experts else 0
        )

    @property
    def dense_gemm_params(self) -> int:
        """Those of them that every token is multiplied with."""
        feed_forward = self._router_params if self.experts else self._expert_params
        return self.layers * (self._attention_params + feed_forward) + self.vocab * self.hidden

    @property
    def all_expert_params(self) -> int:
        """Parameters of all experts of all layers; 0 for a dense model."""
        return self.layers * self.experts * self._expert_params

    @property
    def weight_bytes(self) -> float:
        """Bytes of a version as it generates."""
        return self.params * self.bytes_per_param

    @property
    def kv_bytes_per_token(self) -> float:
        """Bytes of a token's keys and values in all layers."""
        return 2 * self.layers * self.kv_heads * self.head_dim * self.bytes_per_kv

    @property
    def weight_tensors(self) -> int:
        """Tensors of a checkpoint: what is looked up and moved one by one. Each expert has three."""
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
        """Of one expert of one layer, or of a dense layer's feed-forward part."""
        return 3 * self.hidden * self.ffn

    @property
    def _router_params(self) -> int:
        return self.hidden * self.experts


def model(name: str) -> ModelShape:
    """A model of the table.

    Raises:
        UnknownNameError: there is none of this name.
    """
    return pick("model", name, _models())


def model_names() -> tuple[str, ...]:
    """All models of the table."""
    return tuple(_models())


_BYTES = {"float32": 4.0, "bfloat16": 2.0, "float16": 2.0}
_KINDS = ("llama", "mistral", "qwen2", "qwen3", "qwen3_moe")


def load_model(path: str | Path, name: str | None = None) -> ModelShape:
    """A model from its Hugging Face ``config.json``, or the directory that holds one.

    Raises:
        HardwareFileError: there is none, or it is of an architecture that this cost model does not describe.
    """
    path = Path(path)
    file = path / "config.json" if path.is_dir() else path
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise HardwareFileError(f"found no readable model configuration {file}: {error.strerror}") from None
    except ValueError as error:
        raise HardwareFileError(
            f"{file}: found a file that is not JSON ({error}), expected a model's config.json"
        ) from None
    if not isinstance(found, dict) or found.get("model_type") not in _KINDS:
        kind = found.get("model_type") if isinstance(found, dict) else None
        raise HardwareFileError(f"{file}, key 'model_type': found {kind!r}, expected one of {', '.join(_KINDS)}")
    return _from_config(found, name or file.parent.name, str(file))


def _from_config(found: Mapping[str, Any], name: str, where: str) -> ModelShape:
    table = Table(found, where)
    kind = found["model_type"]
    mixture = kind == "qwen3_moe"
    heads = table.whole("num_attention_heads")
    dtype = str(found.get("dtype", found.get("torch_dtype", "bfloat16"))).removeprefix("torch.")
    if dtype not in _BYTES:
        raise HardwareFileError(f"{where}, key 'torch_dtype': found {dtype!r}, expected one of {', '.join(_BYTES)}")
    return ModelShape(
        name=name,
        layers=table.whole("num_hidden_layers"),
        hidden=table.whole("hidden_size"),
        ffn=table.whole("moe_intermediate_size" if mixture else "intermediate_size"),
        query_heads=heads,
        kv_heads=table.whole("num_key_value_heads") if found.get("num_key_value_heads") else heads,
        head_dim=table.whole("head_dim") if found.get("head_dim") else table.whole("hidden_size") // heads,
        vocab=table.whole("vocab_size"),
        experts=table.whole("num_experts") if mixture else 0,
        experts_per_token=table.whole("num_experts_per_tok") if mixture else 0,
        qkv_bias=kind == "qwen2" or bool(found.get("attention_bias", False)),
        head_norm=kind.startswith("qwen3"),
        tied=table.flag("tie_word_embeddings"),
        bytes_per_param=_BYTES[dtype],
        bytes_per_kv=_BYTES[dtype],
    )


@functools.cache
def _models() -> dict[str, ModelShape]:
    text = resources.files(__package__).joinpath("models.toml").read_text(encoding="utf-8")
    return {name: _shape(name, table) for name, table in tomllib.loads(text).items()}


def _shape(name: str, found: Mapping[str, Any]) -> ModelShape:
    table = Table(found, f"models.toml, {name}")
    table.only(one.name for one in fields(ModelShape) if one.name not in ("name", "bytes_per_param", "bytes_per_kv"))
    return ModelShape(
        name=name,
        layers=table.whole("layers"),
        hidden=table.whole("hidden"),
        ffn=table.whole("ffn"),
        query_heads=table.whole("query_heads"),
        kv_heads=table.whole("kv_heads"),
        head_dim=table.whole("head_dim"),
        vocab=table.whole("vocab"),
        experts=table.whole("experts") if "experts" in found else 0,
        experts_per_token=table.whole("experts_per_token") if "experts_per_token" in found else 0,
        qkv_bias=table.flag("qkv_bias"),
        head_norm=table.flag("head_norm"),
        tied=table.flag("tied"),
    )
