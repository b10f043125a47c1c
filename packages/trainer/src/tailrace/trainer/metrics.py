"""Metrics of a batch that several optimizer steps were made on. No torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

_BY_TOKENS = frozenset(
    {
        *(
            "clip_fraction",
            "clip_fraction_low",
            "clip_fraction_high",
            "approx_kl",
            "ratio_mean",
            "entropy",
            "reference_kl",
        ),
        *("value_clip_fraction", "value_mean", "return_mean", "explained_variance"),
    }
)
_BY_PARTS = frozenset({"loss", "grad_norm", "value_loss", "critic_grad_norm"})
_SUMS = frozenset({"offload_bytes", "tokens", "trajectories"})
_LAST = frozenset({"lr", "compiled", "compiled_graphs", "graph_breaks", "recompiles"})
_EFFECTIVE = "effective_sample_size"
_FIRST = frozenset({"mismatch_kl"})  # later steps differ from the engine by the steps before them, too


def merge_metrics(parts: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The metrics of all parts as those of one step (see `TrainerWorker.step`); each part was one optimizer step.

    Seconds and counts are added, maxima are the greatest, `lr` and what was compiled so far are the last, and `mismatch_kl` is
    the first part's; there is none if that part has none. Effective sample sizes are those of all ratios together. Means over
    response tokens are weighted by tokens, those of a staleness by its tokens, means over optimizer steps by parts, and all
    others by trajectories.
    """
    if len(parts) == 1:
        return dict(parts[0])
    merged: dict[str, float] = {}
    for name in dict.fromkeys(name for part in parts for name in part):
        if name in _FIRST and name not in parts[0]:
            continue
        having = [part for part in parts if name in part]
        values = [part[name] for part in having]
        _, is_of, staleness = name.partition("_staleness_")
        if name in _SUMS or name.endswith("_s") or name.startswith("tokens_staleness_"):
            merged[name] = sum(values)
        elif name.endswith("_max"):
            merged[name] = max(values)
        elif name in _LAST:
            merged[name] = values[-1]
        elif name in _FIRST:
            merged[name] = values[0]
        elif name.startswith(_EFFECTIVE):
            lag = is_of + staleness
            merged[name] = _effective(having, name, f"tokens{lag}", f"ratio{lag or '_mean'}")
        else:
            by = f"tokens_staleness_{staleness}" if is_of else "tokens" if name in _BY_TOKENS else "trajectories"
            weights = [1.0 if name in _BY_PARTS else part[by] for part in having]
            shares = [value * weight for value, weight in zip(values, weights, strict=True)]
            merged[name] = sum(shares) / max(1.0, sum(weights))
    return merged


def _effective(parts: Sequence[Mapping[str, float]], name: str, tokens: str, ratio: str) -> float:
    """``(sum r)^2 / (n sum r^2)`` over all parts, from the value, the tokens and the mean ratio of each."""
    count = sum(part[tokens] for part in parts)
    total = sum(part[tokens] * part[ratio] for part in parts)
    squares = sum(part[tokens] * part[ratio] ** 2 / part[name] for part in parts if part[name])
    return total * total / (count * squares) if count and squares else 0.0


def with_critic(policy: Mapping[str, float], critic: Mapping[str, float]) -> dict[str, float]:
    """The metrics of both models. What both have is the bytes and seconds of their moves between host and device: a sum."""
    both = policy.keys() & critic.keys()
    return {**policy, **critic, **{name: policy[name] + critic[name] for name in both}}
