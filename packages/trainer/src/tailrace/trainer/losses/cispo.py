"""REINFORCE with clipped importance weights, which keeps the gradient of every token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tailrace.trainer.losses import Loss, LossTokens
from tailrace.trainer.options import require

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class Cispo(Loss):
    """CISPO (MiniMax-M1, arXiv:2506.13585, equations 4 and 5): ``-sg(clip(r)) A logprob``. Plugin ``cispo``.

    ``clip(r) = clamp(r, 1 - clip_low, 1 + clip_high)`` with ``r = exp(logprob - behaviour)``. The paper has no lower bound, and
    does not print its upper one: 5 is that of arXiv:2510.13786.

    Args:
        clip_low: the importance weight is at least ``1 - clip_low``; 1 is no bound.
        clip_high: the importance weight is at most ``1 + clip_high``.
    """

    clip_low: float = 1.0
    clip_high: float = 4.0

    def __post_init__(self) -> None:
        require("clip_low", self.clip_low, 0.0, open_end=True)
        require("clip_high", self.clip_high, 0.0, open_end=True)

    def loss(self, tokens: LossTokens) -> Tensor:
        """See `Loss.loss`."""
        ratio = (tokens.logprobs.detach() - tokens.behaviour).exp()
        return -ratio.clamp(1.0 - self.clip_low, 1.0 + self.clip_high) * tokens.advantages * tokens.logprobs
