"""StreamRL's planning by plain enumeration. Tests and the benchmark compare the fast functions with it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from tailrace.repack.throughput import ThroughputModel


def split_slowly(
    predicted: Sequence[float],
    replicas: int,
    *,
    step_latency_s: Callable[[int], float],
    max_batch: Callable[[float], int],
    p50: float,
    p90: float,
    alpha: float = 0.2,
    objective: str = "max",
    regular_step_latency_s: Callable[[int], float] | None = None,
) -> tuple[float, int]:
    """The objective's value and the tail's replicas, as `tailrace.repack.plan_dispatch` chooses them for two replicas or more.

    Algorithm 2 with every split tried, each class with at least one trajectory and one replica; nothing is remembered.

    Args:
        regular_step_latency_s: that of the others, where a step takes longer with longer trajectories; None: that of the tail.
    """
    tail = math.ceil(round(alpha * len(predicted), 9))
    found = []
    for split in range(1, replicas):
        times = []
        for count, of, length, longest, step_s in (
            (tail, split, p90, max(predicted), step_latency_s),
            (len(predicted) - tail, replicas - split, p50, 0, regular_step_latency_s or step_latency_s),
        ):
            each = math.ceil(count / of)
            batch = min(each, max_batch(length))
            rounds = math.ceil(each / batch)
            times.append(max(step_s(batch) * length * rounds, step_s(batch) * longest))
        found.append((max(times) if objective == "max" else sum(times), split))
    return min(found)


def spread_slowly(lengths: Sequence[float], queues: int) -> list[list[int]]:
    """Positions in each queue: the longest that is left goes where the sum is smallest, found by looking at all."""
    left = list(range(len(lengths)))
    spread: list[list[int]] = [[] for _ in range(queues)]
    while left:
        longest = max(left, key=lambda position: (lengths[position], -position))
        left.remove(longest)
        sums = [sum(lengths[position] for position in queue) for queue in spread]
        spread[sums.index(min(sums))].append(longest)
    return spread


def optimal_makespan(lengths: Sequence[float], slots: int) -> float:
    """The smallest makespan of all assignments to slots. Exponential: for a dozen lengths at most."""
    order = sorted(lengths, reverse=True)
    best = sum(order)

    def assign(index: int, loads: tuple[float, ...]) -> None:
        nonlocal best
        if index == len(order):
            best = min(best, max(loads))
            return
        for slot in {load: slot for slot, load in enumerate(loads)}.values():  # equal loads are one case
            load = loads[slot] + order[index]
            if load < best:
                assign(index + 1, (*loads[:slot], load, *loads[slot + 1 :]))

    assign(0, (0,) * slots)
    return best


def fill_slowly(times: Sequence[Callable[[int], float]], count: int) -> float:
    """The least time in which replicas generate `count` trajectories together, over all ways to share them out.

    Args:
        times: of each replica, seconds for a number of trajectories of at least 1.
        count: trajectories.
    """
    if len(times) == 1:
        return times[0](count) if count else 0.0
    return min(
        max(times[0](taken) if taken else 0.0, fill_slowly(times[1:], count - taken)) for taken in range(count + 1)
    )


def allocate_slowly(
    devices: int,
    generate_s: Callable[[int], float],
    train_s: Callable[[int], float],
    iteration_s: Callable[[float, float], float] = max,
) -> tuple[float, int, int] | None:
    """Seconds, devices in all and devices that generate of the best allocation; None if none fits."""
    found = [
        (iteration_s(generate_s(generate), train_s(train)), generate + train, generate)
        for generate in range(1, devices)
        for train in range(1, devices - generate + 1)
    ]
    return min((each for each in found if each[0] < math.inf), default=None)


def batch_time_slowly(
    lengths: Sequence[int],
    replicas: int,
    model: ThroughputModel,
    slots: int | None,
    kv_tokens: int | None = None,
) -> float:
    """What `tailrace.repack.batch_time_s` computes: every replica decoded step by step, and the slowest taken."""
    order = sorted(lengths, reverse=True)
    if kv_tokens is not None and order[0] > kv_tokens:
        return math.inf
    slowest = 0.0
    for replica in range(replicas):
        waiting = [order[place] for place in range(replica, len(order), replicas)]
        running: list[tuple[int, int]] = []  # tokens so far, and in the end
        seconds = 0.0
        while waiting or running:
            while waiting and (slots is None or len(running) < slots):
                if kv_tokens is not None and sum(end for _, end in running) + waiting[0] > kv_tokens:
                    break
                running.append((0, waiting.pop(0)))
            seconds += model.step_latency_s(sum(so_far for so_far, _ in running), len(running))
            running = [(so_far + 1, end) for so_far, end in running if so_far + 1 < end]
        slowest = max(slowest, seconds)
    return slowest


def share_slowly(
    devices: int,
    batch: Sequence[int],
    costs: Sequence[tuple[int, int, float, float, float, float]],
    training: Sequence[tuple[int, float]],
    slots: int | None = None,
) -> tuple[float, int, int] | None:
    """Seconds of an iteration, devices in all and devices that generate, over every number and size of replicas and every
    measured trainer; None if nothing fits. What `tailrace.repack.share_devices` finds.
    """
    found = []
    for size, kv_tokens, *k in costs:
        for replicas in range(1, devices // size + 1):
            generation_s = batch_time_slowly(batch, replicas, ThroughputModel(*k), slots, kv_tokens or None)
            for train, training_s in training:
                if replicas * size + train <= devices and generation_s < math.inf:
                    found.append((max(generation_s, training_s), replicas * size + train, replicas * size))
    return min(found, default=None)
