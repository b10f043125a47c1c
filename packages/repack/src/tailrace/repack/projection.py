"""How full a KV cache will become, from what is left of the trajectories in it. Pure."""

from __future__ import annotations

from collections.abc import Sequence


def peak_kv(kv: float, left: Sequence[float | None], capacity_tokens: int) -> float:
    """The highest share of a replica's KV cache in use until its trajectories have ended, if no other joins them.

    Each grows by a token in every step until it ends and frees what it holds. So the peak is where one of them ends: with the
    k-th shortest of m at an end, m - k + 1 hold what they have now and as many tokens more as that one had left. How much each
    has now is not known apart, so all are taken to have as much. One of which nothing is predicted stays as it is.

    Args:
        kv: share in use now, 0 to 1.
        left: tokens that each trajectory is still expected to generate, E[L - t | L > t]; None if that is not predicted.
        capacity_tokens: tokens that the cache can hold; 0 if unknown, and then the share in use now is the answer.
    """
    if not capacity_tokens or not left:
        return kv
    each = kv * capacity_tokens / len(left)
    known = sorted([tokens for tokens in left if tokens is not None])
    others = each * (len(left) - len(known))
    ends = [(len(known) - at) * (each + tokens) for at, tokens in enumerate(known)]
    return max(kv, (others + max(ends, default=0.0)) / capacity_tokens)
