"""The layout of a Megatron-core trainer (GPTModel with Transformer Engine layers), in Hugging Face names.

Rank order is Megatron's default, `tp-cp-ep-dp-pp`: tensor-parallel ranks are neighbours, pipeline stages are furthest apart;
experts divide each stage's ranks by themselves into `etp`, then `ep`, then replicas.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tailrace.paramserver.errors import LayoutInvalid
from tailrace.paramserver.layout.model_config import DecoderShape, is_tied, model_shape, positive, rank_names
from tailrace.paramserver.layout.rules import Position, Rule, Stages, by_rules
from tailrace.paramserver.layout.sharding import GlobalTensor, Layout
from tailrace.paramserver.layout.splits import Even, HeadSplit, Vocabulary, Whole

_LAYER = r"model\.layers\.(?P<layer>\d+)\."


def from_megatron(
    tensors: Iterable[GlobalTensor],
    config: Mapping[str, Any],
    *,
    tp: int = 1,
    pp: int = 1,
    dp: int = 1,
    cp: int = 1,
    ep: int = 1,
    etp: int | None = None,
    virtual_stages: int = 1,
    layers_per_stage: Sequence[int] | None = None,
    vocabulary_multiple: int = 128,
    rules: Sequence[Rule] = (),
    ranks: Iterable[str] | None = None,
) -> Layout:
    """The layout of a Megatron trainer.

    Args:
        tensors: the model, in Hugging Face names; `qwen_tensors(config)` lists those of Qwen models.
        config: its Hugging Face config, as a dict.
        tp, pp, dp, cp: sizes of the tensor, pipeline, data and context parallel dimensions; there are tp * pp * dp * cp ranks.
        ep: number of ranks over which the experts are distributed.
        etp: tensor parallelism within an expert; `tp` by default, as in Megatron.
        virtual_stages: chunks of layers per stage, interleaved; their parameters' names start with `model0.`, `model1.`, ...
        layers_per_stage: layers of each stage; equal by default.
        vocabulary_multiple: `make_vocab_size_divisible_by`.
        rules: rules for names that the table lacks, or instead of its own.
        ranks: names of the ranks, in their order; `rank0`, ... by default.

    Raises:
        LayoutInvalid: sizes do not divide as Megatron needs it, or no rule matches a tensor.
    """
    positive(tp=tp, pp=pp, dp=dp, cp=cp, ep=ep, virtual_stages=virtual_stages)
    etp = tp if etp is None else etp
    positive(etp=etp, vocabulary_multiple=vocabulary_multiple)
    shape, tensors = model_shape(config), tuple(tensors)
    stage_size = tp * cp * dp
    # Without experts Megatron still forms their groups; it does not matter here how.
    if shape.experts and (stage_size % (etp * ep) or shape.experts % ep):
        raise LayoutInvalid(
            f"found etp {etp} and ep {ep} with {stage_size} ranks per stage and {shape.experts} experts, "
            "expected etp * ep to divide the ranks and ep the experts"
        )
    positions = {}
    for number, name in enumerate(rank_names(ranks, stage_size * pp)):
        stage, within = divmod(number, stage_size)
        expert = (within % etp, etp, within // etp % ep, ep) if shape.experts else ()
        positions[name] = Position(stage, within % tp, tp, *expert)
    table = (*rules, *megatron_rules(tensors, shape, vocabulary_multiple, named_chunks=virtual_stages > 1))
    stages = megatron_stages(shape.layers, pp, virtual_stages, layers_per_stage)
    return by_rules(tensors, table, positions, stages, shape.experts)


def megatron_stages(
    layers: int, stages: int, virtual_stages: int = 1, layers_per_stage: Sequence[int] | None = None
) -> Stages:
    """The layers of every pipeline stage: consecutive, or dealt out in chunks where stages are interleaved.

    Raises:
        LayoutInvalid: the layers do not divide evenly, or `layers_per_stage` does not add up.
    """
    chunks = stages * virtual_stages
    if layers_per_stage is None:
        if layers % chunks:
            raise LayoutInvalid(f"found {layers} layers, expected a multiple of {chunks}, or give layers_per_stage")
        sizes = [layers // chunks] * chunks
    else:
        if len(layers_per_stage) != stages or sum(layers_per_stage) != layers or min(layers_per_stage) < 0:
            raise LayoutInvalid(
                f"layers_per_stage: found {list(layers_per_stage)}, expected {stages} for {layers} layers"
            )
        if any(size % virtual_stages for size in layers_per_stage):
            raise LayoutInvalid(
                f"layers_per_stage: found {list(layers_per_stage)}, expected multiples of {virtual_stages}"
            )
        sizes = [size // virtual_stages for size in layers_per_stage] * virtual_stages
    found: list[list[range]] = [[] for _ in range(stages)]
    start = 0
    for chunk, size in enumerate(sizes):
        found[chunk % stages].append(range(start, start + size))
        start += size
    return found


def megatron_rules(
    tensors: Sequence[GlobalTensor], shape: DecoderShape, vocabulary_multiple: int, *, named_chunks: bool = False
) -> list[Rule]:
    """The table for Qwen2, Qwen3 and their mixtures of experts, and for models that name their parameters alike.

    Norms in front of a linear layer are part of it in Transformer Engine (`linear_qkv.layer_norm_weight`).
    """
    chunk = "model{chunk}." if named_chunks else ""
    layer = chunk + "decoder.layers.{local_layer}."
    attention, expert = layer + "self_attention.", layer + "mlp.experts."
    vocabulary = Vocabulary(vocabulary_multiple, of_each_part=True)
    output = chunk + "output_layer.weight"
    sizes = (shape.heads, shape.kv_heads, shape.head_dim)
    dense = "|".join(
        name.split(".")[2]
        for name, _, _ in tensors
        if name.startswith("model.layers.") and name.endswith(".mlp.gate_proj.weight")
    )
    return [
        Rule(r"model\.embed_tokens\.weight", chunk + "embedding.word_embeddings.weight", vocabulary, "first"),
        # With pipeline stages, the last one has its own copy of a tied embedding.
        *([Rule(r"model\.embed_tokens\.weight", output, vocabulary, "last")] if is_tied(tensors) else []),
        Rule(r"lm_head\.weight", output, vocabulary, "last"),
        Rule(r"model\.norm\.weight", chunk + "decoder.final_layernorm.weight", Whole(), "last"),
        *(
            Rule(
                _LAYER + rf"self_attn\.{role}_proj\.(?P<kind>weight|bias)",
                attention + "linear_qkv.{kind}",
                HeadSplit(role, *sizes, grouped=True),
            )
            for role in ("q", "k", "v")
        ),
        Rule(_LAYER + r"self_attn\.o_proj\.weight", attention + "linear_proj.weight", Even(1)),
        Rule(_LAYER + r"self_attn\.o_proj\.bias", attention + "linear_proj.bias", Whole()),
        Rule(_LAYER + r"self_attn\.(?P<of>[qk])_norm\.weight", attention + "{of}_layernorm.weight", Whole()),
        Rule(_LAYER + r"input_layernorm\.weight", attention + "linear_qkv.layer_norm_weight", Whole()),
        Rule(
            rf"model\.layers\.(?P<layer>{dense or '(?!)'})\.post_attention_layernorm\.weight",
            layer + "mlp.linear_fc1.layer_norm_weight",
            Whole(),
        ),
        Rule(_LAYER + r"post_attention_layernorm\.weight", layer + "pre_mlp_layernorm.weight", Whole()),
        *_linear_rules(r"mlp\.", layer + "mlp.linear_fc{}.weight"),
        Rule(_LAYER + r"mlp\.gate\.weight", layer + "mlp.router.weight", Whole()),
        *_linear_rules(r"mlp\.shared_expert\.", layer + "mlp.shared_experts.linear_fc{}.weight"),
        Rule(_LAYER + r"mlp\.shared_expert_gate\.weight", layer + "mlp.shared_experts.gate_weight", Whole()),
        *_linear_rules(r"mlp\.experts\.(?P<expert>\d+)\.", expert + "linear_fc{}.weight{local_expert}"),
    ]


def _linear_rules(prefix: str, buffer: str) -> list[Rule]:
    """A gated MLP: gate and up on top of each other in the first linear layer."""
    first, second = (buffer.replace("{}", number) for number in "12")
    return [
        Rule(_LAYER + prefix + r"gate_proj\.weight", first, Even(0, 0, 2)),
        Rule(_LAYER + prefix + r"up_proj\.weight", first, Even(0, 1, 2)),
        Rule(_LAYER + prefix + r"down_proj\.weight", second, Even(1)),
    ]
