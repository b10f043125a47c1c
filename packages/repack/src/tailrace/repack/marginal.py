"""What one more trajectory would add to a replica's throughput (StaleFlow, section 5.3, equations 3 and 4).

The KV cache is counted in tokens, so k5, the footprint of a token, is 1.
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
    """Tokens per second that a replica gains by a trajectory (equation 3); 0 if it would have to wait.

    Long trajectories may lower the throughput of those that run: then the gain is below 0.

    Args:
        model: with k1 in seconds for each token in the KV cache.
        kv_tokens: in its KV cache.
        running: trajectories in its decode batch.
        waiting: trajectories queued in its engine; the next one starts at once only if there are none.
        length: tokens of the trajectory so far.
        kv_budget_tokens: tokens that its KV cache holds (M); 0 if unknown, then there is no limit.
        capacity: trajectories that its decode batch holds; None for no limit.
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
    """Tokens per second of a trajectory alone on an idle replica: the most that it can gain anywhere (equation 4).

    Algorithm 3 prints k1 * k2 * length where equation 4 has k1 * k5 * length; the equation is followed.
    """
    return model.throughput(length, 1)
