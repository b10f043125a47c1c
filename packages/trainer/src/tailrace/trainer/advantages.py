"""Group-normalised advantages and the weight of each token in the loss. Plain Python, no torch."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence

from tailrace.trainer.config import Normalisation


def group_advantages(
    groups: Sequence[Hashable], rewards: Sequence[float], *, divide_by_std: bool = True
) -> list[float]:
    """The advantage of each trajectory within its group: ``(r - mean) / std`` (GRPO, arXiv:2402.03300, section 4.1.2).

    The standard deviation is the population's. If all rewards of a group are equal, its advantages are 0.

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
        scale = 0.0 if min(values) == max(values) else (1.0 / std if divide_by_std else 1.0)
        moments[group] = (mean, scale)
    return [(reward - moments[group][0]) * moments[group][1] for group, reward in zip(groups, rewards, strict=True)]


def token_weights(lengths: Sequence[int], normalisation: Normalisation) -> list[float]:
    """The weight of each response's tokens, such that the loss of a mini-batch is the weighted sum over its tokens.

    ``"token"``: ``1 / sum(lengths)`` (DAPO, arXiv:2503.14476, equation 12). ``"sequence"``: ``1 / (responses * length)``
    (GRPO, arXiv:2402.03300, equation 3). Empty responses are not counted.
    Since the weights refer to the whole mini-batch, the gradient is a sum over tokens, and the gradients of any split into
    micro-batches or ranks add up to it.

    Args:
        lengths: tokens of each response.
        normalisation: ``"token"`` or ``"sequence"``.
    """
    if normalisation == "token":
        total = sum(lengths)
        return [1.0 / total if length else 0.0 for length in lengths]
    responses = sum(1 for length in lengths if length)
    return [1.0 / (responses * length) if length else 0.0 for length in lengths]
