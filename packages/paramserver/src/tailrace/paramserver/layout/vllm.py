"""The layout of a rollout engine's workers (vLLM), in Hugging Face names: where `load_weights` would put every element.

Rank order is vLLM's: tensor-parallel ranks are neighbours, then pipeline stages, then data-parallel ranks, then replicas.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from tailrace.paramserver.errors import LayoutInvalid
from tailrace.paramserver.layout.model_config import DecoderShape, is_tied, model_shape, positive, rank_names
from tailrace.paramserver.layout.rules import Position, Rule, Stages, by_rules
from tailrace.paramserver.layout.sharding import GlobalTensor, Layout
from tailrace.paramserver.layout.splits import Even, HeadSplit, InStack, Stacked, Vocabulary, Whole

_LAYER = r"(?P<prefix>model\.layers\.(?P<layer>\d+)\.)"
_VOCABULARY = Vocabulary(64)  # vLLM's DEFAULT_VOCAB_PADDING_SIZE


def from_vllm(
    tensors: Iterable[GlobalTensor],
    config: Mapping[str, Any],
    *,
    tp: int = 1,
    pp: int = 1,
    dp: int = 1,
    replicas: int = 1,
    expert_parallel: bool = False,
    layers_per_stage: Sequence[int] | None = None,
    rules: Sequence[Rule] = (),
    ranks: Iterable[str] | None = None,
) -> Layout:
    """The layout of the workers of vLLM engines.

    Key and value heads lie on several ranks when there are more ranks than heads. q, k and v are one buffer (`qkv_proj`),
    gate and up another (`gate_up_proj`), the experts of a rank two (`w13_weight`, `w2_weight`).

    Args:
        tensors: the model, in Hugging Face names, experts one by one as in checkpoints or stacked as in transformers 5.
        config: its Hugging Face config, as a dict.
        tp, pp: tensor and pipeline parallel sizes.
        dp: vLLM's data-parallel size: engines that share out the experts of one model.
        replicas: independent engine groups with the same layout.
        expert_parallel: `enable_expert_parallel`: experts are shared out over the tp * dp ranks of a stage. Otherwise each
            expert is cut over them.
        layers_per_stage: `VLLM_PP_LAYER_PARTITION`; vLLM's own choice by default.
        rules: rules for names that the table lacks, or instead of its own.
        ranks: names of the ranks, in their order; `rank0`, ... by default.

    Raises:
        LayoutInvalid: sizes do not divide as vLLM needs it, or no rule matches a tensor.
    """
    positive(tp=tp, pp=pp, dp=dp, replicas=replicas)
    shape, tensors = model_shape(config), tuple(tensors)
    positions = {}
    for number, name in enumerate(rank_names(ranks, tp * pp * dp * replicas)):
        part, stage, engine = number % tp, number // tp % pp, number // (tp * pp) % dp
        flat, group = engine * tp + part, dp * tp
        expert = (0, 1, flat, group) if expert_parallel else (flat, group)
        positions[name] = Position(stage, part, tp, *(expert if shape.experts else ()))
    table = (*rules, *vllm_rules(tensors, shape))
    return by_rules(tensors, table, positions, vllm_stages(shape.layers, pp, layers_per_stage), shape.experts)


def vllm_stages(layers: int, stages: int, layers_per_stage: Sequence[int] | None = None) -> Stages:
    """The layers of every pipeline stage, as vLLM's `get_pp_indices` deals them out: what is left over goes to the stages
    before the last one, from the back.

    Raises:
        LayoutInvalid: `layers_per_stage` does not add up.
    """
    if layers_per_stage is None:
        share, rest = divmod(layers, stages)
        sizes = [share] * stages
        for place in range(2, rest + 2):
            sizes[-place] += 1
    else:
        sizes = list(layers_per_stage)
        if len(sizes) != stages or sum(sizes) != layers or min(sizes) < 0:
            raise LayoutInvalid(f"layers_per_stage: found {sizes}, expected {stages} for {layers} layers")
    starts = [sum(sizes[:stage]) for stage in range(stages)]
    return [[range(start, start + size)] for start, size in zip(starts, sizes, strict=True)]


def vllm_rules(tensors: Sequence[GlobalTensor], shape: DecoderShape) -> list[Rule]:
    """The table for Qwen2, Qwen3 and their mixtures of experts, and for models that name their parameters alike."""
    embedding = r"model\.embed_tokens\.weight"
    sizes = (shape.heads, shape.kv_heads, shape.head_dim)
    # vLLM 0.2x keeps a layer's experts in a module of their own.
    w13, w2 = "{prefix}mlp.experts.routed_experts.w13_weight", "{prefix}mlp.experts.routed_experts.w2_weight"
    # vLLM's mixtures of experts have these on every stage, its dense models only where they are used.
    first: Literal["first", "every"] = "every" if shape.experts else "first"
    last: Literal["last", "every"] = "every" if shape.experts else "last"
    one = _LAYER + r"mlp\.experts\.(?P<expert>\d+)\."
    return [
        Rule(embedding, "model.embed_tokens.weight", _VOCABULARY, first),
        # With pipeline stages, the last one has its own copy of a tied embedding.
        *([Rule(embedding, "model.embed_tokens.weight", _VOCABULARY, "last")] if is_tied(tensors) else []),
        Rule(r"lm_head\.weight", "lm_head.weight", _VOCABULARY, last),
        Rule(r"model\.norm\.weight", "model.norm.weight", Whole(), last),
        *(
            Rule(
                _LAYER + rf"self_attn\.{role}_proj\.(?P<kind>weight|bias)",
                "{prefix}self_attn.qkv_proj.{kind}",
                HeadSplit(role, *sizes),
            )
            for role in ("q", "k", "v")
        ),
        Rule(_LAYER + r"self_attn\.o_proj\.weight", "{prefix}self_attn.o_proj.weight", Even(1)),
        Rule(_LAYER + r"(?P<rest>self_attn\.(o_proj\.bias|[qk]_norm\.weight))", "{prefix}{rest}", Whole()),
        Rule(_LAYER + r"(?P<rest>(input|post_attention)_layernorm\.weight)", "{prefix}{rest}", Whole()),
        Rule(_LAYER + r"(?P<rest>mlp\.(gate|shared_expert_gate)\.weight)", "{prefix}{rest}", Whole()),
        *(
            Rule(
                _LAYER + rf"(?P<mlp>mlp\.(shared_expert\.)?){name}_proj\.weight",
                "{prefix}{mlp}gate_up_proj.weight",
                Even(0, slot, 2),
            )
            for slot, name in enumerate(("gate", "up"))
        ),
        Rule(_LAYER + r"(?P<rest>mlp\.(shared_expert\.)?down_proj\.weight)", "{prefix}{rest}", Even(1)),
        Rule(one + r"gate_proj\.weight", w13, InStack(Even(0, 0, 2))),
        Rule(one + r"up_proj\.weight", w13, InStack(Even(0, 1, 2))),
        Rule(one + r"down_proj\.weight", w2, InStack(Even(1))),
        Rule(_LAYER + r"mlp\.experts\.gate_up_proj", w13, Stacked(1, 2), of_experts=True),
        Rule(_LAYER + r"mlp\.experts\.down_proj", w2, Stacked(2), of_experts=True),
    ]
