"""How much memory a rank of FSDP2 needs, by arithmetic on its settings and the model's shape. Importing it needs no torch.

state         parameters, gradients, moments: 4 + 4 + 8 bytes per parameter, over the ranks of a cell
computing     when a backward pass begins: what layers keep, logits, what is gathered from other ranks
reducing      when a backward pass ends: the outermost unit's gradients, whole, and a copy in float32 that is summed over ranks

The most of a step is the state and the larger one of the other two.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from tailrace.trainer.config import SMALL_MODEL_PARAMETERS, TrainerConfig
from tailrace.trainer.errors import ModelError

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float64": 8}
"""Bytes of an element, by the name of its dtype."""
_DENSE, _MIXTURES = ("llama", "mistral", "qwen2", "qwen3"), ("qwen3_moe",)
LOGITS_ON_CPU, LOGITS_ON_GPU = 1 << 24, 1 << 28
"""Most logits that exist at one time, unless `TrainerConfig.logits_budget` says otherwise."""


@dataclass(frozen=True, slots=True)
class DenseModel:
    """The shape of a causal LM with gated layers: Llama, Mistral, Qwen2, Qwen3. Sizes are in elements.

    Args:
        hidden, layers, heads, kv_heads, head_dim, mlp, vocabulary: its sizes.
        tied: whether the output layer is the embeddings.
        head_norms: whether queries and keys are normed by head (Qwen3).
        biases: whether queries, keys and values have biases (Qwen2).
    """

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    mlp: int
    vocabulary: int
    tied: bool
    head_norms: bool
    biases: bool

    def mixture(self, experts: int, experts_per_token: int) -> MixtureModel:
        """The same with so many experts in each layer, of which `mlp` is the width."""
        return MixtureModel(
            **asdict(self),
            experts=experts,
            experts_per_token=experts_per_token,
        )

    @property
    def queries(self) -> int:
        """Elements of a token's queries."""
        return self.heads * self.head_dim

    @property
    def keys(self) -> int:
        """Elements of a token's keys, or values."""
        return self.kv_heads * self.head_dim

    @property
    def mlp_parameters(self) -> int:
        """Parameters of a layer's MLP."""
        return 3 * self.hidden * self.mlp

    @property
    def layer_parameters(self) -> int:
        """Parameters of one layer."""
        matrices = self.hidden * (2 * self.queries + 2 * self.keys) + self.mlp_parameters
        norms = 2 * self.hidden + (2 * self.head_dim if self.head_norms else 0)
        return matrices + norms + (self.queries + 2 * self.keys if self.biases else 0)

    @property
    def outer_parameters(self) -> int:
        """Parameters of embeddings, output layer and last norm."""
        return self.hidden * (self.vocabulary * (1 if self.tied else 2) + 1)

    @property
    def critic_parameters(self) -> int:
        """All parameters of a critic of this architecture: without an output layer, with a head of one row."""
        return self.layers * self.layer_parameters + self.hidden * (self.vocabulary + 2)

    @property
    def parameters(self) -> int:
        """All parameters, tied ones once."""
        return self.layers * self.layer_parameters + self.outer_parameters


@dataclass(frozen=True, slots=True)
class MixtureModel(DenseModel):
    """The shape of a mixture of experts: Qwen3-MoE. `mlp` is the width of one expert.

    Args:
        experts: experts of each layer.
        experts_per_token: how many of them a token takes.
    """

    experts: int = 1
    experts_per_token: int = 1

    @property
    def mlp_parameters(self) -> int:
        """Parameters of a layer's experts and of its router."""
        return self.experts * self.hidden * (3 * self.mlp + 1)


def read_shape(directory: str | Path) -> DenseModel | None:
    """The shape that a model directory's ``config.json`` tells; None for an architecture that is not counted here.

    Raises:
        ModelError: the file is missing or damaged.
    """
    path = Path(directory) / "config.json"
    try:
        return shape_of(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelError(f"{path} does not tell a model's shape: {error!r}") from error


def shape_of(config: Mapping[str, Any]) -> DenseModel | None:
    """See `read_shape`."""
    kind = config["model_type"]
    mixture = kind in _MIXTURES and not config.get("mlp_only_layers") and config.get("decoder_sparse_step", 1) == 1
    if kind not in _DENSE and not mixture:
        return None
    hidden, heads = int(config["hidden_size"]), int(config["num_attention_heads"])
    found = DenseModel(
        hidden=hidden,
        layers=int(config["num_hidden_layers"]),
        heads=heads,
        kv_heads=int(config.get("num_key_value_heads") or heads),
        head_dim=int(config.get("head_dim") or hidden // heads),
        mlp=int(config["moe_intermediate_size" if mixture else "intermediate_size"]),
        vocabulary=int(config["vocab_size"]),
        tied=bool(config.get("tie_word_embeddings", False)),
        head_norms=kind.startswith("qwen3"),
        biases=kind == "qwen2",
    )
    if not mixture:
        return found
    # transformers 5 writes them under another name than Qwen does
    experts = config["num_experts"] if "num_experts" in config else config["num_local_experts"]
    return found.mixture(int(experts), int(config["num_experts_per_tok"]))


@dataclass(frozen=True, slots=True)
class TrainerMemory:
    """Bytes of one rank.

    Args:
        parameters, gradients, optimizer: its shards; with those of the reference model and of the critic, if there are any.
        activations: what layers keep for the backward pass of the largest micro-batch.
        logits: logits, what is computed from them, and the gradient of the output layer.
        gathered: parameters that are gathered while a layer computes.
        reducing: gathered parameters and whole gradients when the outermost unit's are summed over ranks.
        away: what of the shards is in host memory but for the optimizer step.
    """

    parameters: int
    gradients: int
    optimizer: int
    activations: int
    logits: int
    gathered: int
    reducing: int
    away: int = 0

    @property
    def state(self) -> int:
        """What stays from step to step, gradients included."""
        return self.parameters + self.gradients + self.optimizer

    @property
    def peak(self) -> int:
        """The most that a step needs."""
        passes = self.state - self.away + max(self.activations + self.logits + self.gathered, self.reducing)
        return max(self.state, passes)


def trainer_memory(
    shape: DenseModel, config: TrainerConfig, *, ranks: int, longest: int = 0, gpu: bool = False
) -> TrainerMemory:
    """Predict the memory of each rank.

    Args:
        shape: the model's shape.
        config: the settings.
        ranks: ranks of a cell, over which the model is sharded.
        longest: tokens of the longest prompt with its response. Beyond `micro_batch_tokens` it is a micro-batch by itself.
        gpu: whether it computes on a GPU.
    """
    size = DTYPE_BYTES[config.dtype]
    wide = max(4, size)
    tokens = max(config.micro_batch_tokens, longest)
    whole = shape.parameters <= SMALL_MODEL_PARAMETERS
    again = config.activation_checkpointing == "on" or (config.activation_checkpointing == "auto" and not whole)
    row = max(longest, config.shared_prompt_tokens) if config.shared_prompt_tokens else 0
    of_layer = tokens * _bytes_of_layer(shape, size, expanded=bool(row), packed=config.packing)
    inputs = tokens * shape.hidden * size
    activations = (shape.layers * inputs + of_layer) if again else shape.layers * of_layer
    activations += tokens * row * size + 6 * inputs  # the mask; embeddings, last norm, hidden states of responses
    budget = config.logits_budget or (LOGITS_ON_GPU if gpu else LOGITS_ON_CPU)
    chunk = min(tokens, max(1, budget // shape.vocabulary))
    logits = chunk * shape.vocabulary * (3 * wide + (2 * size if size < wide else 0))
    logits += shape.vocabulary * shape.hidden * (wide + size + (size if size < wide else 0))
    outer = shape.parameters if whole else shape.outer_parameters
    gathered = outer * size + (0 if whole else 4 * shape.layer_parameters * size)
    share = -(-shape.parameters // ranks) * wide
    if whole:  # gradients of earlier micro-batches are whole until the last one, and no shard is there yet
        gathered += outer * wide - share
    reducing = outer * (2 * size + wide) + (0 if whole else 2 * shape.layer_parameters * size)
    copies, trained = 2 if config.keeps_reference else 1, share
    gradients = share
    if config.has_critic:
        # Its passes keep what the policy's do, but for the logits, and have no outermost unit that is larger: the policy's are
        # the most. Both have gradients at once only while a batch is streamed.
        of_critic = -(-shape.critic_parameters // ranks) * wide
        trained += of_critic
        gradients += 0 if config.early_gradients_refused() else of_critic
    away = 2 * trained if config.offload and gpu else 0
    return TrainerMemory(
        (copies - 1) * share + trained, gradients, 2 * trained, activations, logits, gathered, reducing, away
    )


def advice(shape: DenseModel, config: TrainerConfig, *, ranks: int, longest: int, limit: int) -> str:
    """Which setting to change so that a GPU of `limit` bytes is enough, in the order in which one would try.

    Args:
        shape, config, ranks, longest: see `trainer_memory`.
        limit: bytes.
    """

    def fits(changed: TrainerConfig, over: int = ranks) -> bool:
        return trainer_memory(shape, changed, ranks=over, longest=longest, gpu=True).peak <= limit

    again = replace(config, activation_checkpointing="on")
    if fits(again) and not fits(config):
        return 'trainer.options.activation_checkpointing = "on"'
    tokens = config.micro_batch_tokens
    while tokens > max(longest, 512):
        tokens = max(longest, 512, tokens // 2)
        if fits(fewer := replace(config, micro_batch_tokens=tokens)):
            return f"trainer.options.micro_batch_tokens = {fewer.micro_batch_tokens}"
    if fits(replace(again, offload=("optimizer",))):
        return 'trainer.options.offload = ["optimizer"]'
    for times in (2, 4, 8, 16, 32):
        if fits(again, ranks * times):
            return f"trainer.processes = {ranks * times * config.cells}"
    return "a smaller model, or an adapter (trainer.adapter.rank)"


def _bytes_of_layer(shape: DenseModel, size: int, *, expanded: bool, packed: bool = False) -> int:
    """Bytes that a layer keeps for each token, if it keeps all.

    A norm keeps its input, which in bfloat16 is a float32 copy, the normed and the weighted values, and a float32 for each row.
    With a mask, keys and values are repeated for each query head. In a packed row they are not, but what attention gives is
    there twice: of each sequence, and joined.
    """
    normed = 3 if size >= 4 else 4
    elements, of_router = _kept_by_mlp(shape)
    elements += 2 * normed * shape.hidden
    # attention's inputs and what it gives
    elements += (3 if packed else 2) * shape.queries + 2 * (shape.queries if expanded and not packed else shape.keys)
    rows = 2 + shape.heads  # of norms and attention
    if shape.head_norms:
        elements += (normed - 1) * (shape.queries + shape.keys)
        rows += shape.heads + shape.kv_heads
    return elements * size + 4 * rows + of_router


def _kept_by_mlp(shape: DenseModel) -> tuple[int, int]:
    """Elements that an MLP keeps for each token, and bytes of a router that have another dtype.

    A mixture keeps, of each expert that a token takes, its input, its output and its weight too. Its router keeps probabilities
    in float32, and four integers for each expert that a token takes: where it went, there and back.
    """
    of_expert = 4 * shape.mlp  # gate, its activation, up, their product
    if not isinstance(shape, MixtureModel):
        return of_expert, 0
    taken = shape.experts_per_token
    return taken * (of_expert + 2 * shape.hidden + 1), 4 * shape.experts + 4 * 8 * taken
