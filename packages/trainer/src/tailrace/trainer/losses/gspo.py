"""The clipped surrogate of whole responses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from tailrace.trainer.losses import LossTokens, Normalisation, per_response
from tailrace.trainer.losses.clipped import Surrogate

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class Gspo(Surrogate):
    """GSPO (arXiv:2507.18071, equation 5): the clipped surrogate of the response's ratio ``s``. Plugin ``gspo``.

    ``s = exp(mean over the response's tokens of logprob - behaviour)``. Each token has its loss with
    ``s_t = sg(s) exp(logprob - sg(logprob))`` in place of s (section 4.3), so that the mean over a response's tokens has the
    value and the gradient of the response's loss. Of a response of several contexts each has a ratio of its own: the model
    reads them apart, and they may be computed apart.

    Args:
        clip_low: the response's ratio is clipped below at ``1 - clip_low`` (section 5.1).
        clip_high: the response's ratio is clipped above at ``1 + clip_high``.
    """

    clip_low: float = 3e-4
    clip_high: float = 4e-4
    normalisation: ClassVar[Normalisation] = "sequence"

    def ratio(self, tokens: LossTokens) -> Tensor:
        """The response's ratio, with the token's gradient, ``[tokens]``."""
        own = tokens.logprobs.detach()
        return per_response(own - tokens.behaviour, tokens.response).exp() * (tokens.logprobs - own).exp()
