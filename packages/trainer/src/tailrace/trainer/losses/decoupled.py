"""Surrogates whose ratio is to the trainer's own weights before the batch, with a weight for what lies before them.

    r = exp(logprob - behaviour) = q w       q = exp(logprob - proximal), which is clipped
                                             w = exp(proximal - behaviour), which has no gradient

What lies before them is staleness, and what engine and trainer compute differently with equal weights.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from tailrace.trainer.errors import TrainerConfigError
from tailrace.trainer.losses import LossTokens, Normalisation, proximal_of
from tailrace.trainer.losses.clipped import Surrogate, clipped_surrogate
from tailrace.trainer.options import require

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class Decoupled(Surrogate):
    """``-sg(f(w)) min(q A, clip(q, 1 - clip_low, 1 + clip_high) A)`` for every token, with the ``f`` of a subclass.

    Args:
        clip_low: the ratio to the proximal policy is clipped below at ``1 - clip_low``.
        clip_high: the ratio to the proximal policy is clipped above at ``1 + clip_high``.
    """

    needs_proximal: ClassVar[bool] = True

    @abstractmethod
    def corrected(self, weights: Tensor) -> Tensor:
        """The weights ``w`` as they enter the loss, ``[tokens]``; they have no gradient."""

    def ratio(self, tokens: LossTokens) -> Tensor:
        """The ratio to the proximal policy, ``[tokens]``."""
        return (tokens.logprobs - proximal_of(tokens)).exp()

    def loss(self, tokens: LossTokens) -> Tensor:
        """See `Loss.loss`."""
        weights = self.corrected((proximal_of(tokens) - tokens.behaviour).detach().exp())
        return weights * clipped_surrogate(self.ratio(tokens), tokens.advantages, self.clip_low, self.clip_high)


@dataclass(frozen=True, slots=True)
class DecoupledPpo(Decoupled):
    """Decoupled PPO (arXiv:2110.00641; AReaL, arXiv:2505.24298, equation 5): ``-sg(w) min(q A, clip(q) A)``. How far the policy
    moves is bounded from where the trainer is, and not from the stale weights that drew the tokens. Plugin ``decoupled-ppo``.

    Args:
        clip_low, clip_high: see `Decoupled`.
        weight_cap: most that the weight of a token is; none: no such limit.
    """

    weight_cap: float | None = None

    def __post_init__(self) -> None:
        Surrogate.__post_init__(self)
        if self.weight_cap is not None:
            require("weight_cap", self.weight_cap, 0.0)

    def corrected(self, weights: Tensor) -> Tensor:
        """The weights, of at most `weight_cap`."""
        return weights if self.weight_cap is None else weights.clamp(max=self.weight_cap)


@dataclass(frozen=True, slots=True)
class Tis(Decoupled):
    """Truncated importance sampling (Yao et al. 2025, "Your efficient RL framework secretly brings you off-policy RL
    training"): ``-sg(min(w, cap)) min(q A, clip(q) A)``, on DAPO's surrogate. Plugin ``tis``.

    Args:
        clip_low, clip_high: see `Decoupled`.
        cap: most that the weight of a token is.
    """

    clip_high: float = 0.28
    cap: float = 2.0

    def __post_init__(self) -> None:
        Surrogate.__post_init__(self)
        require("cap", self.cap, 0.0)

    def corrected(self, weights: Tensor) -> Tensor:
        """The weights, of at most `cap`."""
        return weights.clamp(max=self.cap)


@dataclass(frozen=True, slots=True)
class IcePop(Decoupled):
    """IcePop (Ling Team, arXiv:2510.18855): ``-sg(w if low <= w <= high else 0) min(q A, clip(q) A)``, so that tokens on which
    engine and trainer disagree have no gradient. Plugin ``icepop``.

    Args:
        clip_low, clip_high: see `Decoupled`.
        low: least weight of a token that has a gradient.
        high: greatest weight of a token that has a gradient.
    """

    low: float = 0.5
    high: float = 5.0
    normalisation: ClassVar[Normalisation] = "sequence"

    def __post_init__(self) -> None:
        Surrogate.__post_init__(self)
        require("low", self.low, 0.0)
        require("high", self.high, 0.0)
        if self.low > self.high:
            raise TrainerConfigError(f"found low = {self.low!r} and high = {self.high!r}, expected low <= high")

    def corrected(self, weights: Tensor) -> Tensor:
        """The weights within the bounds, and 0 for others."""
        return weights.where((weights >= self.low) & (weights <= self.high), 0.0)  # infinity times 0 is no number

    def clipped(self, tokens: LossTokens) -> tuple[Tensor, Tensor]:
        """See `Loss.clipped`. A token whose weight is out of bounds is one of them, whatever its ratio."""
        low, high = Decoupled.clipped(self, tokens)
        weights = (proximal_of(tokens) - tokens.behaviour).detach().exp()
        light, heavy = weights < self.low, weights > self.high
        return light | (low & ~heavy), heavy | (high & ~light)
