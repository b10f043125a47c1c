"""Log-probabilities of given tokens from hidden states, without keeping the logits of a large vocabulary."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

CHUNK_ELEMENTS = 1 << 24
"""Most logits that exist at one time: 64 MiB in float32."""


class _TokenLogprobs(torch.autograd.Function):
    """Log-probabilities by chunks of logits. The backward pass recomputes each chunk; a single chunk is kept."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, temperature: float, entropy: bool
    ) -> tuple[Tensor, Tensor]:
        tokens = len(targets)
        chunk = max(1, CHUNK_ELEMENTS // weight.shape[0])
        logprobs = torch.empty(tokens, dtype=_wide(hidden), device=hidden.device)
        spread = torch.zeros(tokens if entropy else 0, dtype=_wide(hidden), device=hidden.device)
        normaliser = torch.empty_like(logprobs)
        kept: Tensor | None = None
        for start in range(0, tokens, chunk):
            part = slice(start, start + chunk)
            logits = _logits(hidden[part], weight, temperature)
            normaliser[part] = logits.logsumexp(-1)
            logprobs[part] = logits.gather(1, targets[part, None])[:, 0] - normaliser[part]
            probabilities = (logits - normaliser[part, None]).exp_() if entropy or tokens <= chunk else None
            if entropy and probabilities is not None:
                spread[part] = normaliser[part] - (probabilities * logits).sum(-1)
            if tokens <= chunk:
                kept = probabilities
        ctx.save_for_backward(hidden, weight, targets, normaliser, kept)
        ctx.chunk, ctx.temperature = chunk, temperature
        ctx.mark_non_differentiable(spread)
        return logprobs, spread

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor, Tensor, None, None, None]:
        grad = grads[0]
        hidden, weight, targets, normaliser, kept = ctx.saved_tensors
        grad_hidden = torch.empty_like(hidden)
        grad_weight = torch.zeros(weight.shape, dtype=_wide(weight), device=weight.device)
        for start in range(0, len(targets), ctx.chunk):
            part = slice(start, start + ctx.chunk)
            if kept is None:
                logits = _logits(hidden[part], weight, ctx.temperature)
                probabilities = (logits - normaliser[part, None]).exp_()
            else:
                probabilities = kept
            # d logprob[t] / d logits = onehot(t) - softmax, over the temperature.
            scale = grad[part, None] / ctx.temperature
            slope = probabilities * -scale
            slope = slope.scatter_add_(1, targets[part, None], scale).to(hidden.dtype)
            grad_hidden[part] = slope @ weight
            grad_weight += slope.T @ hidden[part]
        return grad_hidden, grad_weight.to(weight.dtype), None, None, None


def _logits(hidden: Tensor, weight: Tensor, temperature: float) -> Tensor:
    logits = (hidden @ weight.T).to(_wide(hidden))
    return logits if temperature == 1.0 else logits / temperature


def _wide(tensor: Tensor) -> torch.dtype:
    """The tensor's dtype, but at least float32."""
    return torch.promote_types(tensor.dtype, torch.float32)


def token_logprobs(
    hidden: Tensor, weight: Tensor, targets: Tensor, *, temperature: float = 1.0, entropy: bool = False
) -> tuple[Tensor, Tensor]:
    """``log softmax(hidden @ weight.T / temperature)[targets]``, in bounded memory.

    Args:
        hidden: hidden states, ``[tokens, width]``.
        weight: weight of the output layer, ``[vocabulary, width]``.
        targets: token ids, ``[tokens]``.
        temperature: temperature of the softmax.
        entropy: whether to return the entropy of each softmax too.

    Returns:
        Log-probabilities ``[tokens]``, at least in float32, differentiable in `hidden` and `weight`; entropies ``[tokens]`` in
        nats, not differentiable, empty without `entropy`.
    """
    logprobs, spread = _TokenLogprobs.apply(hidden, weight, targets, temperature, entropy)
    return logprobs, spread
