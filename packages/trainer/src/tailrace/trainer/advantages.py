"""Group-normalised advantages and the weight of each token in the loss. Plain Python, no torch."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence

from tailrace.contracts import same_rewards
from tailrace.trainer.config import Normalisation


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


def batch_advantages(groups: Sequence[Hashable], rewards: Sequence[float]) -> list[float]:
    """Rewards centred within their group, divided by their standard deviation over the whole batch (REINFORCE++,
    arXiv:2501.03262, the variant with group means). If all are equal within their groups, all advantages are 0.

    Args:
        groups: the group of each trajectory of the batch, in any order.
        rewards: the reward of each trajectory.
    """
    centred = group_advantages(groups, rewards, divide_by_std=False)
    std = math.sqrt(math.fsum(value * value for value in centred) / max(1, len(centred)))
    return [value / std if std else 0.0 for value in centred]


def token_weights(lengths: Sequence[int], normalisation: Normalisation) -> list[float]:
    """The weight of each response's tokens in a sum over tokens, which `units` of the same batch scales to its loss.

    ``"token"``: 1 (DAPO, arXiv:2503.14476, equation 12). ``"sequence"``: 1 / length (GRPO, arXiv:2402.03300, equation 3).
    A weight depends on its own response alone. So the gradients of any split into micro-batches, ranks, cells or parts of a
    batch add up to the batch's, whatever the sizes of the parts, and are scaled once. A mean of the parts' means would not do.

    Args:
        lengths: tokens of each response.
        normalisation: ``"token"`` or ``"sequence"``.
    """
    return [0.0 if not length else 1.0 if normalisation == "token" else 1.0 / length for length in lengths]


def units(lengths: Sequence[int], normalisation: Normalisation) -> int:
    """What the weighted sum over a batch's tokens is divided by: its tokens, or its responses that are not empty."""
    return sum(lengths) if normalisation == "token" else sum(1 for length in lengths if length)
