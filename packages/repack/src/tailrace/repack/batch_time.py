"""How long replicas take to generate a batch, from the cost of a decoding step and the lengths of its responses."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from heapq import heappop, heappush

from tailrace.repack.lpt import check_count, checked_lengths
from tailrace.repack.throughput import ThroughputModel


def batch_time_s(
    lengths: Sequence[int],
    replicas: int,
    model: ThroughputModel,
    slots: int | None = None,
    kv_tokens: int | None = None,
) -> float:
    """Seconds until the last of some equal replicas, free at first, has generated its part of a batch.

    The responses are dealt out in turn, longest first. A replica starts the longest that waits whenever a slot of its decode
    batch is free and, where its KV cache has a limit, holds it beside all that run, each with its whole length: none is ever
    preempted. It holds the keys and values of the tokens that it has generated; prompts are not counted.

    Args:
        lengths: response tokens of each trajectory, whole numbers of at least 1.
        replicas: at least 1.
        model: the cost of a step, with the KV cache counted in tokens.
        slots: trajectories that a replica decodes together; None: no limit.
        kv_tokens: tokens that its KV cache holds; None: no limit.

    Returns:
        Seconds; infinite if the longest response does not fit the KV cache.

    Raises:
        LoadError: there are no lengths, or a value is out of its range.
    """
    checked_lengths(lengths, "lengths")
    check_count("replicas", replicas)
    for name, limit in (("slots", slots), ("kv_tokens", kv_tokens)):
        if limit is not None:
            check_count(name, limit)
    order = sorted(lengths, reverse=True)
    if kv_tokens is None:
        # Of each deal the first replica has the longest, so no other ends later.
        return _alone_s(order[::replicas], model, slots, math.inf)
    if order[0] > kv_tokens:
        return math.inf
    # Shorter ones may run more at once, whose steps take longer: each replica may be the last.
    parts = (order[replica::replicas] for replica in range(min(replicas, len(order))))
    return max(_alone_s(part, model, slots, kv_tokens) for part in parts)


def batch_like(lengths: Sequence[int], trajectories: int) -> Sequence[int]:
    """`trajectories` lengths at equal distances in the distribution of the last ones; empty if there are none of either."""
    known = sorted(max(1, length) for length in lengths[-trajectories:]) if trajectories else []
    if not known:
        return ()
    return [known[number * len(known) // trajectories] for number in range(trajectories)]


def _alone_s(queue: Sequence[int], model: ThroughputModel, slots: int | None, room: float) -> float:
    """Seconds of one replica for a queue of responses, each of which fits."""
    waiting = deque(queue)
    running: list[tuple[int, int]] = []  # the step after which it ends, and its tokens then
    seconds, step, kv_tokens, reserved = 0.0, 0, 0, 0
    while waiting or running:
        while waiting and (slots is None or len(running) < slots) and reserved + waiting[0] <= room:
            length = waiting.popleft()
            reserved += length
            heappush(running, (step + length, length))
        ends, length = heappop(running)
        steps, count = ends - step, len(running) + 1
        if steps:
            # The cache grows by `count` with each step, so half a batch more than at the first on average.
            mean_kv = kv_tokens + count * (steps - 1) / 2
            seconds += steps * model.step_latency_s(mean_kv, count)
            kv_tokens += count * steps
            step = ends
        kv_tokens -= length
        reserved -= length
    return seconds
