"""How long replicas take to generate a batch, from the cost of a decoding step and the lengths of its responses."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush

from tailrace.repack.lpt import check_count, checked_lengths
from tailrace.repack.throughput import ThroughputModel


def batch_time_s(lengths: Sequence[int], replicas: int, model: ThroughputModel, slots: int | None = None) -> float:
    """Seconds until the last of some equal replicas, free at first, has generated its part of a batch.

    The responses are dealt out in turn, longest first. A replica starts the longest that waits whenever a slot of its decode
    batch is free. It holds the keys and values of the tokens that it has generated; prompts are not counted.

    Args:
        lengths: response tokens of each trajectory, whole numbers of at least 1.
        replicas: at least 1.
        model: the cost of a step, with the KV cache counted in tokens.
        slots: trajectories that a replica decodes together; None: no limit.

    Raises:
        LoadError: there are no lengths, or a value is out of its range.
    """
    checked_lengths(lengths, "lengths")
    check_count("replicas", replicas)
    if slots is not None:
        check_count("slots", slots)
    # Of each deal the first replica has the longest, so no other ends later.
    queue = sorted(lengths, reverse=True)[::replicas]
    first = len(queue) if slots is None else min(slots, len(queue))
    running = [(length, length) for length in queue[:first]]  # the step after which it ends, and its tokens then
    heapify(running)
    waiting = iter(queue[first:])
    seconds, step, kv_tokens = 0.0, 0, 0
    while running:
        ends, length = heappop(running)
        steps, count = ends - step, len(running) + 1
        if steps:
            # The cache grows by `count` with each step, so half a batch more than at the first on average.
            mean_kv = kv_tokens + count * (steps - 1) / 2
            seconds += steps * model.step_latency_s(mean_kv, count)
            kv_tokens += count * steps
            step = ends
        kv_tokens -= length
        after = next(waiting, None)
        if after is not None:
            heappush(running, (step + after, after))
    return seconds
