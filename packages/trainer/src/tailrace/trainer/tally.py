"""What is added up beside gradients: losses and counts, so that means are taken once, over the whole batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from tailrace.contracts import Experience
from tailrace.trainer.advantages import units
from tailrace.trainer.batch import weighted_lengths
from tailrace.trainer.config import TrainerConfig

_PER_TOKEN = (
    "clip_fraction_low",
    "clip_fraction_high",
    "approx_kl",
    "ratio_mean",
    "ratio_square",
    "entropy",
    "reference_kl",
)
"""Sums over generated tokens, each of weight 1."""
STALENESSES = 8
"""Tokens of staleness 0, 1, ... have sums of their own; those of the last one and above are together."""
_BY_STALENESS = [
    f"{name}_staleness_{lag}" for lag in range(STALENESSES) for name in ("tokens", "ratio", "square", "kl")
]
_COUNTED = ("units", "tokens", "trajectories", "reward", "version", "of_a_version")
_SUMS = ("loss", *_PER_TOKEN, *_BY_STALENESS, *_COUNTED)


def sums_by_staleness(staleness: Tensor | None, ratio: Tensor, kl: Tensor) -> Tensor:
    """Tokens, and sums of ratios, their squares and KL, of each staleness in turn, ``[4 x STALENESSES]``.

    Args:
        staleness: of each token, ``[tokens]``; None or empty if it is not known.
        ratio, kl: of each token, ``[tokens]``.
    """
    found = torch.zeros(STALENESSES, 4, dtype=torch.float64, device=ratio.device)
    if staleness is not None and len(staleness):
        values = torch.stack([torch.ones_like(ratio), ratio, ratio.square(), kl], dim=1).double()
        found.index_add_(0, staleness.clamp(0, STALENESSES - 1), values)
    return found.flatten()


class Tally:
    """Sums over trajectories, of this rank or of several.

    `sums` are in the order of `_SUMS`; `maxima` are the longest response, and the oldest version as its negative.

    Args:
        device: where the sums are.
    """

    def __init__(self, device: torch.device) -> None:
        self.sums = torch.zeros(len(_SUMS), dtype=torch.float64, device=device)
        self.maxima = torch.full((2,), -torch.inf, dtype=torch.float64, device=device)
        self.forward_s = self.backward_s = 0.0

    def count(self, experiences: Sequence[Experience], config: TrainerConfig) -> None:
        """Count trajectories that are trained on. Of all ranks that have them, one does so."""
        lengths = [experience.generated_tokens for experience in experiences]
        versions = [experience.oldest_version for experience in experiences if experience.spans]
        rewards = sum(experience.reward or 0.0 for experience in experiences)
        weighted = units(weighted_lengths(experiences, config), config.normaliser)
        found = (weighted, sum(lengths), len(lengths), rewards, sum(versions), len(versions))
        self.sums[-len(_COUNTED) :] += torch.tensor(found, dtype=torch.float64).to(self.sums)
        most = (max(lengths, default=0.0), -min(versions) if versions else -torch.inf)
        self.maxima = torch.maximum(self.maxima, torch.tensor(most, dtype=torch.float64).to(self.maxima))

    def count_tokens(self, tokens: int) -> None:
        """Count the response tokens of supervised samples."""
        self.sums[_SUMS.index("units")] += tokens
        self.sums[_SUMS.index("tokens")] += tokens

    def see(self, values: Tensor) -> None:
        """Add the loss and the sums over tokens of one micro-batch."""
        self.sums[: len(values)] += values

    def add(self, other: Tally) -> None:
        """Add what another part of the batch has."""
        self.sums += other.sums
        self.maxima = torch.maximum(self.maxima, other.maxima)
        self.forward_s += other.forward_s
        self.backward_s += other.backward_s

    def over(self, group: Any = None) -> dict[str, float]:
        """The sums over all ranks of a group, by name, with ``longest`` and ``oldest``. Collective.

        Args:
            group: the process group; None: all ranks.
        """
        sums, maxima = self.sums.clone(), self.maxima.clone()
        dist.all_reduce(sums, group=group)
        dist.all_reduce(maxima, op=dist.ReduceOp.MAX, group=group)
        longest, oldest = maxima.tolist()
        return dict(zip(_SUMS, sums.tolist(), strict=True)) | {"longest": max(0.0, longest), "oldest": -oldest}


def means(total: dict[str, float]) -> dict[str, float]:
    """The metrics that `TrainerWorker.step` reports of trajectories, from sums over all of them."""
    tokens, trajectories = max(1.0, total["tokens"]), max(1.0, total["trajectories"])
    found = {"loss": total["loss"] / max(1.0, total["units"])}
    found |= {"clip_fraction": (total["clip_fraction_low"] + total["clip_fraction_high"]) / tokens}
    found |= {name: total[name] / tokens for name in _PER_TOKEN if name != "ratio_square"}
    found |= {"effective_sample_size": _effective(total["tokens"], total["ratio_mean"], total["ratio_square"])}
    if total["tokens_staleness_0"]:
        found |= {"mismatch_kl": total["kl_staleness_0"] / total["tokens_staleness_0"]}
    for lag in range(STALENESSES):
        of_lag, ratio, square, kl = (total[f"{name}_staleness_{lag}"] for name in ("tokens", "ratio", "square", "kl"))
        if of_lag:
            found |= {
                f"tokens_staleness_{lag}": of_lag,
                f"ratio_staleness_{lag}": ratio / of_lag,
                f"kl_staleness_{lag}": kl / of_lag,
                f"effective_sample_size_staleness_{lag}": _effective(of_lag, ratio, square),
            }
    return found | {
        "reward_mean": total["reward"] / trajectories,
        "trajectories": total["trajectories"],
        "tokens": total["tokens"],
        "response_tokens_mean": total["tokens"] / trajectories,
        "response_tokens_max": total["longest"],
    }


def _effective(tokens: float, ratio: float, square: float) -> float:
    """The effective sample size of importance ratios as a share of the tokens: ``(sum r)^2 / (n sum r^2)``."""
    return ratio * ratio / (tokens * square) if tokens and square else 0.0


def versions(total: dict[str, float]) -> dict[str, float]:
    """The oldest version that made a token, and the mean over trajectories of each one's oldest; nothing if none has one."""
    if not total["of_a_version"]:
        return {}
    return {"version_oldest": total["oldest"], "version_mean": total["version"] / total["of_a_version"]}
