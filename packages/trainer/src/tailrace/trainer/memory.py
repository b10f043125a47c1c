"""How much memory a rank of the trainer needs, by arithmetic on its settings and the model's shape. No torch is imported.

state         parameters, gradients, moments: 4 + 4 + 8 bytes per parameter, over the ranks of a cell
computing     when a backward pass begins: what layers keep, logits, what is gathered from other ranks
reducing      when a backward pass ends: the outermost unit's gradients, whole, and a copy in float32 that is summed over ranks

The most of a step is the state and the larger one of the other two. That is FSDP2. A rank of Megatron-core has its part of each
layer and of the vocabulary, the moments of some of it, and gathers nothing. A rank of DeepSpeed has what its stage of ZeRO
leaves it, float32 copies of its share beside what passes compute with, and buckets of gradients while they are reduced.
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
COUNTED = ("fsdp2", "deepspeed", "megatron")
"""The backends that `trainer_memory` knows."""
ZERO_BUCKET = 50_000_000
"""Gradients that DeepSpeed adds up over ranks at a time, in elements."""
ZERO_LIVE = 1_000_000_000
"""Most elements of parameters that ZeRO 3 keeps gathered (DeepSpeed's ``stage3_max_live_parameters``, its default)."""
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
    shape: DenseModel,
    config: TrainerConfig,
    *,
    ranks: int,
    longest: int = 0,
    gpu: bool = False,
    backend: str = "fsdp2",
) -> TrainerMemory:
    """Predict the memory of each rank.

    Args:
        shape: the model's shape.
        config: the settings.
        ranks: ranks of a cell, over which the model is sharded.
        longest: tokens of the longest prompt with its response. Beyond `micro_batch_tokens` it is a micro-batch by itself.
        gpu: whether it computes on a GPU.
        backend: one of `COUNTED`.
    """
    size = DTYPE_BYTES[config.dtype]
    wide = max(4, size)
    whole = shape.parameters <= SMALL_MODEL_PARAMETERS
    activations, logits = _passes(shape, config, longest, gpu=gpu, megatron=backend == "megatron")
    if backend == "megatron":
        return _split(shape, config, ranks, activations, logits)
    if backend == "deepspeed":
        return _zero(shape, config, ranks, activations, logits)
    outer = shape.parameters if whole else shape.outer_parameters
    # One layer computes and the next is on its way, each in the tensor that was gathered and copied out of it. A single rank
    # copies its shard when the layer computes, and has neither the other tensor nor the next layer.
    copies_of_layer = 0 if whole else 1 if ranks == 1 else 4
    gathered = (outer + copies_of_layer * shape.layer_parameters) * size
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


def _passes(shape: DenseModel, config: TrainerConfig, longest: int, *, gpu: bool, megatron: bool) -> tuple[int, int]:
    """Bytes of what layers keep for the backward pass of the largest micro-batch, and of logits; see `TrainerMemory`."""
    size = DTYPE_BYTES[config.dtype]
    wide = max(4, size)
    tokens = max(config.micro_batch_tokens, longest)
    whole = shape.parameters <= SMALL_MODEL_PARAMETERS
    again = config.activation_checkpointing == "on" or (config.activation_checkpointing == "auto" and not whole)
    row = max(longest, config.shared_prompt_tokens) if config.shared_prompt_tokens else 0
    if megatron:
        of_layer = tokens * _bytes_of_megatron_layer(shape, size, config.tensor_parallel, packed=config.packing)
    else:
        of_layer = tokens * _bytes_of_layer(shape, size, expanded=bool(row), packed=config.packing)
    inputs = tokens * shape.hidden * size
    activations = (shape.layers * inputs + of_layer) if again else shape.layers * of_layer
    activations += tokens * row * size + 6 * inputs  # the mask; embeddings, last norm, hidden states of responses
    budget = config.logits_budget or (LOGITS_ON_GPU if gpu else LOGITS_ON_CPU)
    rows = -(-shape.vocabulary // config.tensor_parallel)
    chunk = min(tokens, max(1, budget // rows))
    logits = chunk * rows * (3 * wide + (2 * size if size < wide else 0))
    logits += rows * shape.hidden * (wide + size + (size if size < wide else 0))
    return activations, logits


def _split(shape: DenseModel, config: TrainerConfig, ranks: int, activations: int, logits: int) -> TrainerMemory:
    """The memory of a rank of Megatron-core: its part of each layer, all of the norms, and the moments of some tensors."""
    size = DTYPE_BYTES[config.dtype]
    wide, tp = max(4, size), config.tensor_parallel
    norms = shape.layers * (2 * shape.hidden + (2 * shape.head_dim if shape.head_norms else 0)) + shape.hidden

    def state(parameters: int) -> tuple[int, int, int]:
        """Parameters, with their copies in the dtype of the passes, gradients, moments."""
        local = -(-(parameters - norms) // tp) + norms
        return local * (wide + (size if size < wide else 0)), local * wide, 2 * wide * -(-local * tp // ranks)

    parameters, gradients, moments = state(shape.parameters)
    if config.keeps_reference:
        parameters += (-(-(shape.parameters - norms) // tp) + norms) * size
    if config.has_critic:
        of_critic = state(shape.critic_parameters)
        parameters, moments = parameters + of_critic[0], moments + of_critic[2]
        gradients += 0 if config.early_gradients_refused() else of_critic[1]
    return TrainerMemory(parameters, gradients, moments, activations, logits, gathered=0, reducing=0)


def _zero(shape: DenseModel, config: TrainerConfig, ranks: int, activations: int, logits: int) -> TrainerMemory:
    """The memory of a rank of DeepSpeed, by the stage of its ZeRO.

    Gradients of one micro-batch stand beside those of the ones before it until they are reduced. For its step each rank copies
    its share of them into one tensor.
    """
    size, stage = DTYPE_BYTES[config.dtype], config.zero_stage or 2
    wide = max(4, size)

    def state(parameters: int) -> tuple[int, int, int]:
        """Parameters, with the float32 copies of a share, gradients, moments."""
        share = -(-parameters // ranks)
        computed = share if stage == 3 else parameters
        return computed * size + share * wide, (parameters if stage == 1 else share) * wide, 2 * wide * share

    parameters, gradients, moments = state(shape.parameters)
    share = -(-shape.parameters // ranks)
    gathered = min(shape.parameters, ZERO_LIVE) * size if stage == 3 else 0
    bucket = min(shape.parameters, max(ZERO_BUCKET, shape.vocabulary * shape.hidden))
    reducing = bucket * wide + gathered  # the bucket joined; stage 1 has its gradients among the state
    if stage == 2:
        reducing += (share + min(shape.parameters - share, bucket)) * size
    elif stage == 3:
        reducing += bucket * size
    if config.keeps_reference:
        parameters += shape.parameters * size
    if config.has_critic:
        of_critic = state(shape.critic_parameters)
        parameters, moments = parameters + of_critic[0], moments + of_critic[2]
        gradients += 0 if config.early_gradients_refused() else of_critic[1]
    return TrainerMemory(parameters, gradients, moments, activations, logits, gathered, max(reducing, share * wide))


def advice(
    shape: DenseModel, config: TrainerConfig, *, ranks: int, longest: int, limit: int, backend: str = "fsdp2"
) -> str:
    """Which settings to change so that a GPU of `limit` bytes is enough, in the order in which one would try.

    Args:
        shape, config, ranks, longest, backend: see `trainer_memory`.
        limit: bytes.
    """

    def fits(changed: TrainerConfig, over: int = ranks) -> bool:
        found = trainer_memory(shape, changed, ranks=over, longest=longest, gpu=True, backend=backend)
        return found.peak <= limit

    recompute: dict[str, Any] = {"activation_checkpointing": "on"}
    in_words = 'trainer.options.activation_checkpointing = "on"'

    def enough(words: str, over: int = ranks, **changes: Any) -> str:
        """These changes in words if they are enough, alone or with activations computed again; else empty."""
        if fits(replace(config, **changes), over):
            return words
        return f"{in_words}, {words}" if fits(replace(config, **{**changes, **recompute}), over) else ""

    if fits(replace(config, **recompute)) and not fits(config):
        return in_words
    tokens = config.micro_batch_tokens
    while tokens > max(longest, 512):
        tokens = max(longest, 512, tokens // 2)
        if fits(fewer := replace(config, micro_batch_tokens=tokens)):
            return f"trainer.options.micro_batch_tokens = {fewer.micro_batch_tokens}"
    if backend == "deepspeed" and (said := enough("trainer.options.zero_stage = 3", zero_stage=3)):
        return said
    if backend == "fsdp2" and (said := enough('trainer.options.offload = ["optimizer"]', offload=("optimizer",))):
        return said
    for times in (2, 4, 8, 16, 32):
        tp = config.tensor_parallel * times
        if backend == "megatron" and shape.kv_heads % tp == 0:
            over = -(-ranks // tp) * tp
            more = f", trainer.processes = {over * config.cells}" if over > ranks else ""
            if said := enough(f"trainer.options.tensor_parallel = {tp}{more}", over, tensor_parallel=tp):
                return said
    for times in (2, 4, 8, 16, 32):
        if said := enough(f"trainer.processes = {ranks * times * config.cells}", ranks * times):
            return said
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


def _bytes_of_megatron_layer(shape: DenseModel, size: int, tp: int, *, packed: bool, rows: int = 1) -> int:
    """The same of Megatron-core's layer, on each of `tp` ranks.

    A norm in bfloat16 keeps its input and the normed values in float32. Queries, keys and values are one tensor, which stays
    for the values; keys and values are never repeated. Beside gate and up in one tensor stand the activation, a copy of up and
    their product. Sines and cosines are made for queries and for keys, in each layer, once for `rows` that share positions.
    """
    wide = size >= 4
    turned = shape.queries + shape.keys
    elements = 5 * shape.mlp + shape.queries + 2 * shape.keys + turned + (2 if packed else 1) * shape.queries
    heads = shape.heads  # of attention, a float32 each
    if shape.head_norms:
        elements += shape.queries + turned if wide else 4 * turned
        heads += shape.heads + shape.kv_heads
    split = -(-elements // tp) * size + 4 * -(-heads // tp)
    return (2 * (3 if wide else 5) * shape.hidden + 4 * shape.head_dim // rows) * size + split + 4 * 2
