"""The clipped policy-gradient surrogate of GRPO with clip-higher."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Surrogate(NamedTuple):
    """Per-token values, all of shape ``[tokens]``.

    Args:
        loss: loss of each token, to be weighted and summed; differentiable.
        ratio: importance ratio against the behaviour policy, detached.
        clipped: whether the clip is active, so that the token's gradient is zero.
        kl: the estimator ``r - 1 - log r`` of KL(behaviour || policy), detached, never negative.
    """

    loss: Tensor
    ratio: Tensor
    clipped: Tensor
    kl: Tensor


def clipped_surrogate(
    logprobs: Tensor, behaviour: Tensor, advantages: Tensor, *, clip_low: float, clip_high: float
) -> Surrogate:
    """``-min(r A, clip(r, 1 - clip_low, 1 + clip_high) A)`` for every token, with ``r = exp(logprob - behaviour)``.

    DAPO (arXiv:2503.14476) equation 10, which is GRPO (arXiv:2402.03300) equation 3 with two clip ranges and without the
    KL penalty, which `reference_kl` gives. The rollout engine recorded `behaviour` when it drew the token, so the ratio
    corrects for staleness, even if several versions generated one response.

    Args:
        logprobs: log-probability of each token under the current weights, ``[tokens]``.
        behaviour: log-probability of each token under the weights that drew it, ``[tokens]``.
        advantages: for each token, the advantage of its response, ``[tokens]``.
        clip_low: lower clip range.
        clip_high: upper clip range.
    """
    log_ratio = logprobs - behaviour
    ratio = log_ratio.exp()
    free = ratio * advantages
    bounded = ratio.clamp(1.0 - clip_low, 1.0 + clip_high) * advantages
    with torch.no_grad():
        clipped = bounded < free
        kl = ratio - 1.0 - log_ratio
    return Surrogate(-torch.minimum(free, bounded), ratio.detach(), clipped, kl)


def reference_kl(logprobs: Tensor, reference: Tensor) -> Tensor:
    """``p - log p - 1`` for every token, with ``p = exp(reference - logprob)``: an estimator of KL(policy || reference) that
    is never negative (GRPO equation 4).

    Args:
        logprobs: log-probability of each token under the current weights, ``[tokens]``; differentiable.
        reference: under the reference model, ``[tokens]``.
    """
    log_ratio = reference - logprobs
    return log_ratio.exp() - log_ratio - 1.0
