"""Advantages, behind the door ``tailrace.advantages``, and the weight of each token in the loss. Plain Python, no torch."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from tailrace.contracts import PluginError, plugins, same_rewards
from tailrace.trainer.losses import Normalisation
from tailrace.trainer.options import build, require

GROUP = "tailrace.advantages"


class Advantages(ABC):
    """How rewards become advantages, as a frozen dataclass whose fields are its options. It is pure, and keeps no state.

    Attributes:
        needs_batch: whether it needs the rewards of the whole batch, so that no gradient can be computed before the batch is
            complete; otherwise those of a response's group are enough.
    """

    __slots__ = ()
    needs_batch: ClassVar[bool] = False

    @abstractmethod
    def __call__(self, groups: Sequence[Hashable], rewards: Sequence[float]) -> list[float]:
        """The advantage of each trajectory.

        Args:
            groups: the group of each trajectory, in any order; groups are whole.
            rewards: the reward of each trajectory.
        """


@dataclass(frozen=True, slots=True)
class CriticAdvantages(ABC):
    """How rewards and a critic's values become advantages of tokens, as a frozen dataclass whose fields are its options.

    A run with such advantages trains a critic. They are pure, and keep no state.

    Args:
        whiten: whether advantages are whitened over the tokens of the batch, to mean 0 and variance 1.
        kl_coefficient: what the reward of each token is less by, times ``behaviour - reference``: its log-probability when it
            was drawn less that under the model that training began with; above 0 a frozen copy of that model is kept.
    """

    whiten: bool = True
    kl_coefficient: float = 0.0

    def __post_init__(self) -> None:
        require("kl_coefficient", self.kl_coefficient, 0.0, open_end=True)

    @abstractmethod
    def estimate(self, rewards: Sequence[float], values: Sequence[float]) -> tuple[list[float], list[float]]:
        """The advantage of each generated token of a response before whitening, and the return that its value is to learn.

        Args:
            rewards: the reward of each generated token.
            values: the critic's value of what stands before each. What an environment answered stands between two of them.
        """


def open_advantages(name: str, options: Mapping[str, Any] | None = None) -> Advantages | CriticAdvantages:
    """The advantages of this name in the group ``tailrace.advantages``.

    Args:
        name: ``"group"``, ``"batch"``, ``"leave-one-out"``, ``"centred"``, ``"gae"`` or another plugin.
        options: its options by name.

    Raises:
        PluginError: there are none, or what is registered is neither `Advantages` nor `CriticAdvantages`.
        TrainerConfigError: an option is unknown or wrong.
    """
    found = build(plugins.load(GROUP, name), options or {}, f"advantages {name!r}")
    if not isinstance(found, Advantages | CriticAdvantages):
        expected = "expected a tailrace.trainer.advantages.Advantages or CriticAdvantages"
        raise PluginError(f"advantages {name!r} makes a {type(found).__name__}, {expected}")
    return found


def group_advantages(
    groups: Sequence[Hashable], rewards: Sequence[float], *, divide_by_std: bool = True
) -> list[float]:
    """The advantage of each trajectory within its group: ``(r - mean) / std`` (GRPO, arXiv:2402.03300, section 4.1.2).

    The standard deviation is the population's. If all rewards of a group are equal but for
    rounding (`same_rewards`), its advantages are 0.

    Args:
        groups: the group of each trajectory, in any order.
        rewards: the reward of each trajectory.
        divide_by_std: False only subtracts the mean (Dr. GRPO, arXiv:2503.20783).
    """
    members: dict[Hashable, list[float]] = {}
    for group, reward in zip(groups, rewards, strict=True):
        members.setdefault(group, []).append(reward)
    moments: dict[Hashable, tuple[float, float]] = {}
    for group, values in members.items():
        mean = math.fsum(values) / len(values)
        std = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / len(values))
        # Equal rewards such as 0.1 have a tiny nonzero std by rounding, so compare the rewards themselves.
        scale = 0.0 if same_rewards(values) else (1.0 / std if divide_by_std else 1.0)
        moments[group] = (mean, scale)
    return [(reward - moments[group][0]) * moments[group][1] for group, reward in zip(groups, rewards, strict=True)]


@dataclass(frozen=True, slots=True)
class Group(Advantages):
    """``(r - mean) / std`` over the group (GRPO, arXiv:2402.03300, section 4.1.2). Plugin ``group``; see `group_advantages`."""

    def __call__(self, groups: Sequence[Hashable], rewards: Sequence[float]) -> list[float]:
        """See `Advantages`."""
        return group_advantages(groups, rewards)


@dataclass(frozen=True, slots=True)
class Centred(Advantages):
    """``r - mean`` over the group (Dr. GRPO, arXiv:2503.20783): hard and easy prompts weigh no more than others. Plugin
    ``centred``."""

    def __call__(self, groups: Sequence[Hashable], rewards: Sequence[float]) -> list[float]:
        """See `Advantages`."""
        return group_advantages(groups, rewards, divide_by_std=False)


@dataclass(frozen=True, slots=True)
class LeaveOneOut(Advantages):
    """``r - mean over the others of the group`` (RLOO, arXiv:2402.14740, section 3). Plugin ``leave-one-out``.

    It is the centred reward times ``n / (n - 1)``; a response without others has 0.
    """

    def __call__(self, groups: Sequence[Hashable], rewards: Sequence[float]) -> list[float]:
        """See `Advantages`."""
        sizes: dict[Hashable, int] = {}
        for group in groups:
            sizes[group] = sizes.get(group, 0) + 1
        centred = group_advantages(groups, rewards, divide_by_std=False)
        return [
            value * sizes[group] / (sizes[group] - 1) if sizes[group] > 1 else 0.0
            for group, value in zip(groups, centred, strict=True)
        ]


@dataclass(frozen=True, slots=True)
class WholeBatch(Advantages):
    """Rewards centred within their group, divided by their standard deviation over the whole batch (REINFORCE++,
    arXiv:2501.03262, the variant with group means). Plugin ``batch``.

    If all are equal within their groups, all advantages are 0.
    """

    needs_batch: ClassVar[bool] = True

    def __call__(self, groups: Sequence[Hashable], rewards: Sequence[float]) -> list[float]:
        """See `Advantages`."""
        centred = group_advantages(groups, rewards, divide_by_std=False)
        std = math.sqrt(math.fsum(value * value for value in centred) / max(1, len(centred)))
        return [value / std if std else 0.0 for value in centred]


@dataclass(frozen=True, slots=True)
class Gae(CriticAdvantages):
    """Generalised advantage estimation (arXiv:1506.02438, equation 16): ``A_t = d_t + gamma lam A_(t+1)`` with
    ``d_t = r_t + gamma V_(t+1) - V_t``, and ``A_t + V_t`` as returns. Plugin ``gae``.

    Steps are the tokens that the model generated: what an environment answers between two of them is no step, and takes no
    discount. Behind the last one the value is 0, in a response that was cut off at the limit too. Each context of a response
    ends for itself, with the response's reward.

    Args:
        whiten, kl_coefficient: see `CriticAdvantages`.
        gamma: discount of each step.
        lam: how far an advantage looks: 0 to the next value, 1 to the end.
    """

    gamma: float = 1.0
    lam: float = 0.95

    def __post_init__(self) -> None:
        CriticAdvantages.__post_init__(self)
        require("gamma", self.gamma, 0.0, 1.0)
        require("lam", self.lam, 0.0, 1.0)

    def estimate(self, rewards: Sequence[float], values: Sequence[float]) -> tuple[list[float], list[float]]:
        """See `CriticAdvantages`."""
        advantages, advantage, value_after = [0.0] * len(values), 0.0, 0.0
        for step in reversed(range(len(values))):
            delta = rewards[step] + self.gamma * value_after - values[step]
            advantage = delta + self.gamma * self.lam * advantage
            advantages[step], value_after = advantage, values[step]
        return advantages, [value + ahead for value, ahead in zip(values, advantages, strict=True)]


def overlong_penalty(length: int, longest: int, buffer: int) -> float:
    """What a response's length adds to its reward, from -1 to 0 (soft overlong punishment, DAPO equation 13).

    Args:
        length: generated tokens of the response.
        longest: most tokens of a response.
        buffer: tokens before `longest` over which the penalty grows.
    """
    return max(-1.0, min(0.0, (longest - buffer - length) / buffer))


def token_weights(lengths: Sequence[int], normalisation: Normalisation, constant: int = 1) -> list[float]:
    """The weight of each response's tokens in a sum over tokens, which `units` of the same batch scales to its loss.

    ``"token"``: 1 (DAPO, arXiv:2503.14476, equation 12). ``"sequence"``: 1 / length (GRPO, arXiv:2402.03300, equation 3).
    ``"constant"``: 1 / constant (Dr. GRPO, arXiv:2503.20783).
    A weight depends on its own response alone. So the gradients of any split into micro-batches, ranks, cells or parts of a
    batch add up to the batch's, whatever the sizes of the parts, and are scaled once. A mean of the parts' means would not do.

    Args:
        lengths: tokens of each response; 0 for one that does not count.
        normalisation: ``"token"``, ``"sequence"`` or ``"constant"``.
        constant: of ``"constant"``, in tokens.
    """
    shares = {"token": 1.0, "constant": 1.0 / constant if constant else 0.0}
    return [0.0 if not length else shares.get(normalisation, 1.0 / length) for length in lengths]


def units(lengths: Sequence[int], normalisation: Normalisation) -> int:
    """What the weighted sum over a batch's tokens is divided by: its tokens, or its responses that are not empty."""
    return sum(lengths) if normalisation == "token" else sum(1 for length in lengths if length)
