"""The throughput that a replica gains from one more trajectory (StaleFlow, section 5.3, equations 3 and 4).

The KV cache is counted in tokens, so the paper's k5, the size of a token in it, is 1.
"""

from __future__ import annotations

from tailrace.repack.throughput import ThroughputModel


def marginal_gain(
    model: ThroughputModel,
    *,
    kv_tokens: float,
    running: int,
    waiting: int,
    length: int,
    kv_budget_tokens: float = 0,
    capacity: int | None = None,
) -> float:
    """Tokens per second that a replica gains from a trajectory (equation 3); 0 if the trajectory would have to wait.

    A long trajectory may slow the others down by more than it adds; then the gain is negative.

    Args:
        model: the cost model, with k1 in seconds for each token in the KV cache.
        kv_tokens: tokens in the replica's KV cache.
        running: trajectories in its decode batch.
        waiting: trajectories queued in its engine; a new one starts at once only if there are none.
        length: tokens of the trajectory so far.
        kv_budget_tokens: tokens that its KV cache can hold (M); 0 for no limit.
        capacity: trajectories that its decode batch can hold; None for no limit.
    """
    fits = (
        waiting == 0
        and (capacity is None or running < capacity)
        and (not kv_budget_tokens or kv_tokens + length <= kv_budget_tokens)
    )
    if not fits:
        return 0.0
    return model.throughput(kv_tokens + length, running + 1) - model.throughput(kv_tokens, running)


def ideal_gain(model: ThroughputModel, length: int) -> float:
    """Tokens per second of a trajectory alone on an idle replica, the largest possible gain (equation 4).

    Algorithm 3 prints k1 * k2 * length where equation 4 has k1 * k5 * length. This follows the equation.
    """
    return model.throughput(length, 1)
