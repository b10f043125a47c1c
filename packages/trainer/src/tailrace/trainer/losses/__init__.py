"""Losses of the policy, behind the door ``tailrace.loss``. Importing them loads no torch.

tokens (log-probabilities, advantages, ...) -> loss of each token -> weighted, summed, scaled once: see `advantages`
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from tailrace.contracts import PluginError, plugins
from tailrace.trainer.errors import TrainerConfigError
from tailrace.trainer.options import build

if TYPE_CHECKING:
    from torch import Tensor

GROUP = "tailrace.loss"
Normalisation = Literal["token", "sequence", "constant"]


@dataclass(frozen=True, slots=True, eq=False)
class LossTokens:
    """What a loss is computed from: 1-D tensors with one entry for each generated token, of whole responses or contexts.

    Args:
        logprobs: log-probability under the current weights, which gradients go through.
        behaviour: under the weights that drew the token, as the engine recorded it.
        advantages: the advantage of the token, mostly that of its response.
        response: which response the token is of, or which context of one that has several; any whole numbers.
        proximal: log-probability under the trainer's weights before this batch; None unless the loss asks for it.
        versions: the weight version that drew the token; None where that is not known.
    """

    logprobs: Tensor
    behaviour: Tensor
    advantages: Tensor
    response: Tensor
    proximal: Tensor | None = None
    versions: Tensor | None = None


class Loss(ABC):
    """A loss, as a frozen dataclass whose fields are its options. It is pure, and keeps no state.

    What a class says of its loss:

    Attributes:
        normalisation: how a paper's loss weighs tokens (see `advantages.token_weights`).
        advantages: a paper's advantages, by name in the group ``tailrace.advantages``.
        needs_proximal: whether `LossTokens.proximal` is computed.
        streams: whether the loss of a response depends on no other response, so that gradients of parts of a batch add up to
            the batch's.
    """

    __slots__ = ()
    normalisation: ClassVar[Normalisation] = "token"
    advantages: ClassVar[str] = "group"
    needs_proximal: ClassVar[bool] = False
    streams: ClassVar[bool] = True

    @abstractmethod
    def loss(self, tokens: LossTokens) -> Tensor:
        """The loss of each token, ``[tokens]``: unweighted, differentiable in `LossTokens.logprobs`."""

    def clipped(self, tokens: LossTokens) -> tuple[Tensor, Tensor]:
        """The tokens without a gradient because their ratio is too low, and because it is too high: masks, ``[tokens]``."""
        nothing = tokens.advantages.new_zeros(tokens.advantages.shape).bool()
        return nothing, nothing


def open_loss(name: str, options: Mapping[str, Any] | None = None) -> Loss:
    """The loss of this name in the group ``tailrace.loss``.

    Args:
        name: ``"grpo"``, ``"dapo"``, ``"cispo"`` or another plugin.
        options: its options by name; those that are left out have the values of its paper.

    Raises:
        PluginError: there is none, or what is registered is no `Loss`.
        TrainerConfigError: an option is unknown or wrong.
    """
    found = build(plugins.load(GROUP, name), options or {}, f"loss {name!r}")
    if not isinstance(found, Loss):
        raise PluginError(f"loss {name!r} makes a {type(found).__name__}, expected a tailrace.trainer.losses.Loss")
    return found


def proximal_of(tokens: LossTokens) -> Tensor:
    """The proximal log-probabilities, of tokens that must have them.

    Raises:
        TrainerConfigError: they are missing.
    """
    if tokens.proximal is None:
        raise TrainerConfigError(
            "found no proximal log-probabilities, expected them: the loss needs LossTokens.proximal"
        )
    return tokens.proximal


def per_response(values: Tensor, response: Tensor) -> Tensor:
    """The mean of the values over the tokens of each response, for each of its tokens, ``[tokens]``."""
    _, place = response.unique(return_inverse=True)
    sums = values.new_zeros(len(values)).index_add(0, place, values)
    sizes = values.new_zeros(len(values)).index_add(0, place, values.detach().new_ones(len(values)))
    return sums[place] / sizes[place]
