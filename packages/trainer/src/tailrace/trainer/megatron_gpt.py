"""Megatron-core's GPTModel as the policy: it computes log-probabilities of response tokens, tensor-parallel.

Embedding, layers and final norm are Megatron's. Attention is torch's `scaled_dot_product_attention` in the layers' spec: it
takes any mask, so that responses may share their prompt, runs on CPU as on CUDA, and needs none of Megatron's CUDA random
states. Rotary angles come from the rows' own positions, and the output layer is applied to response positions only. So
nothing of Megatron or torch is patched, and no global state of Megatron's is set up.
"""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention, silu
from torch.utils.checkpoint import checkpoint

from tailrace.contracts import extra
from tailrace.trainer.config import SMALL_MODEL_PARAMETERS, TrainerConfig
from tailrace.trainer.megatron_weights import without_output_layer
from tailrace.trainer.microbatch import MicroBatch
from tailrace.trainer.policy_model import token_logprobs
from tailrace.trainer.sharded_model import DTYPES
from tailrace.trainer.varlen_attention import Sequences, varlen_attention


def import_megatron() -> None:
    """Import what `TensorParallelPolicy` needs, without Megatron's warnings.

    Raises:
        MissingExtraError: the extra is not installed.
    """
    with extra("tailrace-trainer", "megatron"), _quietly():
        import megatron.core.models.gpt.gpt_layer_specs
        import megatron.core.models.gpt.gpt_model
        import megatron.core.tensor_parallel  # noqa: F401


class _Attention(nn.Module):
    """Megatron's core attention, of this rank's heads: ``[length, rows, heads, head_dim]`` in, heads joined out.

    In place of a mask it takes the sequences of a packed row.
    """

    def __init__(self, **_: Any) -> None:
        super().__init__()

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | Sequences | None, **_: Any) -> Tensor:
        query, key, value = (each.permute(1, 2, 0, 3) for each in (query, key, value))
        if isinstance(mask, Sequences):
            return varlen_attention(query, key, value, mask).transpose(0, 1).flatten(2)
        found = scaled_dot_product_attention(query, key, value, mask, is_causal=mask is None, enable_gqa=True)
        return found.permute(2, 0, 1, 3).flatten(2)


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """Silence Megatron: it warns of what else could be installed, of its own settings, and of a machine without CUDA."""
    logger = logging.getLogger("torch.utils.cpp_extension")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


class TensorParallelPolicy(nn.Module):
    """GPTModel on one rank. Its parameters are uninitialised.

    Args:
        model: the Hugging Face config, which `check_megatron` has passed.
        settings: the dtype of the parameters, and what is kept of activations and logits.
        group: process group of the tensor-parallel ranks.
        alone: a process group of this rank alone.
    """

    def __init__(self, model: Mapping[str, Any], settings: TrainerConfig, group: Any, alone: Any) -> None:
        super().__init__()
        dtype = DTYPES[settings.dtype]
        import_megatron()
        from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
        from megatron.core.models.gpt.gpt_model import GPTModel
        from megatron.core.process_groups_config import ProcessGroupCollection
        from megatron.core.tensor_parallel import copy_to_tensor_model_parallel_region
        from megatron.core.transformer import TransformerConfig

        self._group, self._enter = group, copy_to_tensor_model_parallel_region
        heads, hidden = model["num_attention_heads"], model["hidden_size"]
        head_dim = model.get("head_dim") or hidden // heads
        normalises = model["model_type"] == "qwen3"
        with _quietly():
            config = TransformerConfig(
                num_layers=model["num_hidden_layers"],
                hidden_size=hidden,
                num_attention_heads=heads,
                num_query_groups=model.get("num_key_value_heads") or heads,
                kv_channels=head_dim,
                ffn_hidden_size=model["intermediate_size"],
                gated_linear_unit=True,
                activation_func=silu,
                normalization="RMSNorm",
                layernorm_epsilon=model.get("rms_norm_eps", 1e-6),
                qk_layernorm=normalises,
                add_bias_linear=False,
                add_qkv_bias=not normalises,
                hidden_dropout=0.0,
                attention_dropout=0.0,
                tensor_model_parallel_size=group.size(),
                params_dtype=dtype,
                bf16=dtype is torch.bfloat16,
                use_cpu_initialization=True,
                perform_initialization=False,
                # fused kernels need Transformer Engine or Apex
                bias_activation_fusion=False,
                bias_dropout_fusion=False,
                masked_softmax_fusion=False,
                gradient_accumulation_fusion=False,
                apply_rope_fusion=False,
                persist_layer_norm=False,
            )
        spec = get_gpt_layer_local_spec(qk_layernorm=normalises, normalization="RMSNorm")
        spec.submodules.self_attention.submodules.core_attention = _Attention
        groups = ProcessGroupCollection()
        groups.tp = group
        groups.pp = groups.cp = groups.embd = groups.dp_cp = groups.tp_cp = alone
        self.vocabulary = int(model["vocab_size"])
        self._tied = bool(model.get("tie_word_embeddings", False))
        with _quietly():
            self.gpt: Any = GPTModel(
                config,
                spec,
                vocab_size=-(-self.vocabulary // group.size()) * group.size(),
                max_sequence_length=model["max_position_embeddings"],
                share_embeddings_and_output_weights=self._tied,
                position_embedding_type="none",
                pg_collection=groups,
            )
        self.gpt.to(dtype)  # norms are made in float32
        large = group.size() * sum(parameter.numel() for parameter in self.gpt.parameters()) > SMALL_MODEL_PARAMETERS
        asked = settings.activation_checkpointing
        self._recomputes, self._logits_budget = asked == "on" or (asked == "auto" and large), settings.logits_budget
        theta = (model.get("rope_parameters") or {}).get("rope_theta", model.get("rope_theta", 10_000.0))
        places = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim
        self.register_buffer("_speeds", 1.0 / theta**places, persistent=False)

    def forward(self, batch: MicroBatch, temperature: float, entropy: bool) -> tuple[Tensor, Tensor]:
        """Log-probabilities and entropies as `tailrace.trainer.policy_model.Policy.forward` gives them, on every rank alike."""
        hidden = self._enter(self._hidden(batch), group=self._group)
        weight = self.gpt.embedding.word_embeddings.weight if self._tied else self.gpt.output_layer.weight
        first = self._group.rank() * weight.shape[0]
        known = max(0, min(weight.shape[0], self.vocabulary - first))  # without padding
        return token_logprobs(
            hidden,
            weight[:known],
            batch.targets,
            temperature=temperature,
            entropy=entropy,
            group=self._group,
            first=first,
            logits_budget=self._logits_budget,
        )

    def _hidden(self, batch: MicroBatch) -> Tensor:
        """The last hidden states of a micro-batch's response tokens, ``[tokens, hidden]``, on every rank alike."""
        ids, positions = batch.input_ids, batch.position_ids
        if positions is None:
            positions = torch.arange(ids.shape[1], device=ids.device)[None]
        half = positions.T[..., None].float() * self._speeds
        angles = torch.cat([half, half], -1)[:, :, None]  # [length, rows or 1, 1, head_dim]
        hidden = self.gpt.embedding(ids, positions)
        for layer in self.gpt.decoder.layers:
            if self._recomputes and torch.is_grad_enabled():
                run = partial(checkpoint, layer, use_reentrant=False, preserve_rng_state=False)
            else:
                run = layer
            hidden = run(hidden, attention_mask=batch.sequences or batch.mask, rotary_pos_emb=angles)[0]
        hidden = self.gpt.decoder.final_layernorm(hidden)
        found: Tensor = hidden.transpose(0, 1).flatten(0, 1)[batch.index]
        return found


class TensorParallelValues(TensorParallelPolicy):
    """GPTModel with a value head, ``score``, in place of its output layer: the critic. Every rank has the whole head.

    Args:
        model, settings, group, alone: see `TensorParallelPolicy`.
    """

    def __init__(self, model: Mapping[str, Any], settings: TrainerConfig, group: Any, alone: Any) -> None:
        super().__init__(without_output_layer(model), settings, group, alone)
        sizes = {"in_features": model["hidden_size"], "out_features": 1, "bias": False}
        self.gpt.score = nn.utils.skip_init(nn.Linear, **sizes, dtype=DTYPES[settings.dtype])

    def forward(self, batch: MicroBatch, temperature: float, entropy: bool) -> tuple[Tensor, Tensor]:
        """Values as `tailrace.trainer.value_model.ValueModel.forward` gives them, on every rank alike."""
        del temperature, entropy  # which the policy's have
        values = self.gpt.score(self._hidden(batch))[:, 0]
        return values.to(torch.promote_types(values.dtype, torch.float32)), values.new_zeros(0)
