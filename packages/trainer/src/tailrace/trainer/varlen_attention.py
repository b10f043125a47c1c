"""Attention within each sequence of a packed micro-batch: one row of sequences that follow each other, without padding.

    [1, heads, tokens, dim] ──► split by sequence ──► attention of each ──► [1, tokens, heads, dim]

Plain sequences are one call of FlashAttention's varlen kernel on a GPU in half precision (`torch.nn.attention.varlen`), and
one of torch's causal attention each otherwise. One whose responses share a prompt has a mask of its own size. No mask is over
the whole row, so that time and memory grow with the sequences' lengths and not with the row's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from inspect import signature
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

IMPLEMENTATION = "tailrace_varlen"
"""The name of `attention_forward` among transformers' attention functions."""
ARGUMENT = "varlen"
"""The argument of a transformers model's forward pass that has the `Sequences`."""
_IGNORED = frozenset({"position_ids", "cache_position", "use_cache", "is_causal"})
_KERNEL_DTYPES = (torch.bfloat16, torch.float16)


@dataclass(frozen=True, slots=True, eq=False)
class Sequences:
    """The sequences of a packed row, in their order; sequences with a mask come first.

    Args:
        lengths: tokens of each.
        masks: of each, additive ``[1, 1, length, length]``; None: causal.
        starts: where each plain one starts among the plain ones, and where the last one ends, ``[plain + 1]``, int32.
    """

    lengths: tuple[int, ...]
    masks: tuple[Tensor | None, ...]
    starts: Tensor

    @staticmethod
    def of(lengths: Sequence[int], masks: Sequence[Tensor | None], device: torch.device) -> Sequences:
        """See the class."""
        plain = [length for length, mask in zip(lengths, masks, strict=True) if mask is None]
        starts = torch.tensor([0, *plain], dtype=torch.int32).cumsum(0, dtype=torch.int32)
        return Sequences(tuple(lengths), tuple(masks), starts.to(device))


def varlen_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    sequences: Sequences,
    scale: float | None = None,
    dropout: float = 0.0,
) -> Tensor:
    """Attention of each token to its own sequence.

    Args:
        query: ``[1, heads, tokens, dim]``.
        key, value: ``[1, key-value heads, tokens, dim]``.
        sequences: where the row's sequences are.
        scale: of the scores; None: ``1 / sqrt(dim)``.
        dropout: the probability with which a weight is dropped; the varlen kernel drops none.

    Returns:
        ``[1, tokens, heads, dim]``.
    """
    lengths, masks = list(sequences.lengths), list(sequences.masks)
    plain = len(sequences.starts) - 1
    fused = plain > 1 and not dropout and _has_kernel(query, value)
    if fused:
        longest, masked = max(lengths[-plain:]), len(lengths) - plain
        lengths, masks = [*lengths[:masked], sum(lengths[masked:])], [*masks[:masked], None]
    found = []
    parts = zip(*(each.split(lengths, 2) for each in (query, key, value)), masks, strict=True)
    for place, (q, k, v, mask) in enumerate(parts):
        if fused and place == len(lengths) - 1:
            kernel: Any = _kernel()
            q, k, v = (each[0].transpose(0, 1) for each in (q, k, v))
            starts: Any = (sequences.starts, sequences.starts, longest, longest)
            out: Any = kernel(q, k, v, *starts, scale=scale, window_size=(-1, 0), enable_gqa=True)
            found.append(out[None])
        else:
            gqa = q.shape[1] != k.shape[1]
            out = scaled_dot_product_attention(
                q, k, v, mask, dropout_p=dropout, is_causal=mask is None, scale=scale, enable_gqa=gqa
            )
            found.append(out.transpose(1, 2))
    return torch.cat(found, 1) if len(found) > 1 else found[0]


def _has_kernel(query: Tensor, value: Tensor) -> bool:
    """Whether FlashAttention's kernel takes these."""
    if not query.is_cuda or query.dtype not in _KERNEL_DTYPES or not query.shape[-1] == value.shape[-1] <= 256:
        return False
    return _kernel() is not None and tuple(torch.cuda.get_device_capability(query.device)) >= (8, 0)


@cache
def _kernel() -> Any | None:
    """torch's varlen attention; None where torch has none, or one of its first, which take no scale, window and shared keys."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return None
    return varlen_attn if {"scale", "window_size", "enable_gqa"} <= signature(varlen_attn).parameters.keys() else None


def attention_forward(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """What a transformers model calls: `varlen_attention` of a packed row, else transformers' own function.

    Raises:
        TypeError: the model's attention has something (capped scores, a window, sinks) that this one has not.
    """
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    sequences = others.pop(ARGUMENT, None)
    if sequences is None:
        found: tuple[Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **others
        )
        return found
    asked = [
        name for name, value in others.items() if name not in _IGNORED and value is not None and value is not False
    ]
    if asked or attention_mask is not None:
        raise TypeError(f"its attention takes {', '.join(asked) or 'a mask'}")
    return varlen_attention(query, key, value, sequences, scaling, dropout), None


def use_in(lm: Any) -> bool:
    """Have a transformers model compute its attention by `attention_forward`. Returns whether it does now."""
    from transformers.modeling_utils import AttentionInterface

    if lm.config._attn_implementation == IMPLEMENTATION:
        return True
    if lm.config._attn_implementation != "sdpa":  # the one that is the same where a row is not packed
        return False
    if IMPLEMENTATION not in AttentionInterface().valid_keys():
        AttentionInterface.register(IMPLEMENTATION, attention_forward)
    lm.set_attn_implementation(IMPLEMENTATION)
    return bool(lm.config._attn_implementation == IMPLEMENTATION)


def leave_uncompiled() -> None:
    """Have `torch.compile` call `attention_forward` as it is: how many sequences there are changes with each row."""
    from transformers.modeling_utils import AttentionInterface

    AttentionInterface.register(IMPLEMENTATION, torch.compiler.disable(attention_forward))


def stop_using_in(lm: Any) -> None:
    """Have a model compute its attention as it did before `use_in`."""
    if lm.config._attn_implementation == IMPLEMENTATION:
        lm.set_attn_implementation("sdpa")
