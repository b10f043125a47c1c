"""Metrics of a batch that several optimizer steps were made on. No torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

_BY_TOKENS = frozenset({"clip_fraction", "approx_kl", "ratio_mean", "entropy", "reference_kl"})
_BY_PARTS = frozenset({"loss", "grad_norm"})
_SUMS = frozenset({"tokens", "trajectories"})


def merge_metrics(parts: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The metrics of all parts as those of one step (see `TrainerWorker.step`); each part was one optimizer step.

    Seconds and counts are added, maxima are the greatest, `lr` is the last. Means over response tokens are weighted by tokens,
    means over optimizer steps by parts, and all others by trajectories.
    """
    if len(parts) == 1:
        return dict(parts[0])
    merged: dict[str, float] = {}
    for name in parts[-1]:
        values = [part[name] for part in parts]
        if name in _SUMS or name.endswith("_s"):
            merged[name] = sum(values)
        elif name.endswith("_max"):
            merged[name] = max(values)
        elif name == "lr":
            merged[name] = values[-1]
        else:
            by = "tokens" if name in _BY_TOKENS else "trajectories"
            weights = [1.0 if name in _BY_PARTS else part[by] for part in parts]
            shares = [value * weight for value, weight in zip(values, weights, strict=True)]
            merged[name] = sum(shares) / max(1.0, sum(weights))
    return merged
