"""The clipped surrogate of single tokens, and the losses that differ by defaults, normalisation and advantages alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from tailrace.trainer.losses import Loss, LossTokens, Normalisation
from tailrace.trainer.options import require

if TYPE_CHECKING:
    from torch import Tensor


def clipped_surrogate(ratio: Tensor, advantages: Tensor, low: float, high: float) -> Tensor:
    """``-min(r A, clip(r, 1 - low, 1 + high) A)`` for every token, ``[tokens]``."""
    return -(ratio * advantages).minimum(ratio.clamp(1.0 - low, 1.0 + high) * advantages)


def clip_masks(ratio: Tensor, advantages: Tensor, low: float, high: float) -> tuple[Tensor, Tensor]:
    """The tokens whose gradient the clip of the surrogate took away: those with a low, and those with a high ratio."""
    ratio = ratio.detach()
    clipped = ratio.clamp(1.0 - low, 1.0 + high) * advantages < ratio * advantages
    return clipped & (ratio < 1.0), clipped & (ratio > 1.0)


@dataclass(frozen=True, slots=True)
class Surrogate(Loss):
    """``-min(r A, clip(r, 1 - clip_low, 1 + clip_high) A)`` for every token, with ``r = exp(logprob - behaviour)``.

    The behaviour is what the engine recorded, so the ratio corrects for staleness, even if several versions generated one
    response.

    Args:
        clip_low: the importance ratio is clipped below at ``1 - clip_low``.
        clip_high: the importance ratio is clipped above at ``1 + clip_high``.
    """

    clip_low: float = 0.2
    clip_high: float = 0.2

    def __post_init__(self) -> None:
        require("clip_low", self.clip_low, 0.0, 1.0, open_end=True)
        require("clip_high", self.clip_high, 0.0, open_end=True)

    def ratio(self, tokens: LossTokens) -> Tensor:
        """The importance ratio that is clipped, ``[tokens]``."""
        return (tokens.logprobs - tokens.behaviour).exp()

    def loss(self, tokens: LossTokens) -> Tensor:
        """See `Loss.loss`."""
        return clipped_surrogate(self.ratio(tokens), tokens.advantages, self.clip_low, self.clip_high)

    def clipped(self, tokens: LossTokens) -> tuple[Tensor, Tensor]:
        """See `Loss.clipped`."""
        return clip_masks(self.ratio(tokens), tokens.advantages, self.clip_low, self.clip_high)


@dataclass(frozen=True, slots=True)
class Grpo(Surrogate):
    """GRPO (arXiv:2402.03300, equation 3): the clipped surrogate, a mean over each response and then over responses. Plugin
    ``grpo``.

    Its penalty for leaving the reference model (equation 4) is the trainer's `kl_coefficient`.

    Args:
        clip_low, clip_high: see `Surrogate`.
    """

    normalisation: ClassVar[Normalisation] = "sequence"


@dataclass(frozen=True, slots=True)
class Dapo(Surrogate):
    """DAPO (arXiv:2503.14476, equation 10): the clipped surrogate with clip-higher, a mean over all tokens. Plugin ``dapo``.

    Dynamic sampling is what a run does: groups of equal rewards are replaced. Overlong shaping and masking are the trainer's
    `overlong_buffer` and `mask_overlong`.

    Args:
        clip_low: the importance ratio is clipped below at ``1 - clip_low``.
        clip_high: the importance ratio is clipped above at ``1 + clip_high`` (clip-higher, section 3.1).
    """

    clip_high: float = 0.28


@dataclass(frozen=True, slots=True)
class DrGrpo(Surrogate):
    """Dr. GRPO (arXiv:2503.20783): the clipped surrogate, summed over each response's tokens and divided by a constant, so that
    long responses are not favoured; advantages are not divided by a standard deviation. Plugin ``dr-grpo``.

    Args:
        clip_low, clip_high: see `Surrogate`.
    """

    normalisation: ClassVar[Normalisation] = "constant"
    advantages: ClassVar[str] = "centred"


@dataclass(frozen=True, slots=True)
class Rloo(Surrogate):
    """RLOO (arXiv:2402.14740): REINFORCE with the mean reward of the other responses as baseline. A whole response is one
    action, so its tokens are summed up. Staleness is corrected by the clipped surrogate, whose gradient at ratio 1 is
    REINFORCE's. Plugin ``rloo``.

    Args:
        clip_low, clip_high: see `Surrogate`.
    """

    normalisation: ClassVar[Normalisation] = "constant"
    advantages: ClassVar[str] = "leave-one-out"


@dataclass(frozen=True, slots=True)
class ReinforcePlusPlus(Surrogate):
    """REINFORCE++ (arXiv:2501.03262): the clipped surrogate with advantages that are normalised over the batch, a mean over all
    tokens. Plugin ``reinforce++``.

    Args:
        clip_low, clip_high: see `Surrogate`.
    """

    advantages: ClassVar[str] = "batch"


@dataclass(frozen=True, slots=True)
class Ppo(Surrogate):
    """PPO (arXiv:1707.06347, equation 7): the clipped surrogate with the advantages of a critic, a mean over all tokens. Plugin
    ``ppo``.

    Args:
        clip_low, clip_high: see `Surrogate`.
    """

    advantages: ClassVar[str] = "gae"
