"""What is compared: ways to hand a batch of trajectories to replicas, with and without predicted lengths. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from dispatching.feeding import Feed, Own, Shared

from tailrace.repack import plan_dispatch
from tailrace.repack.lpt import longest_first

FCFS, LEAST_LOADED = "fcfs", "least-loaded"
ORDER, SPLIT = "order", "split"
"""Longest first to whoever has a place; and with replicas of their own for the tail."""
ORACLE, SHUFFLED = "oracle", "shuffled"
BASE = f"{ORACLE} {ORDER}"
ALPHA = 0.2


@dataclass(frozen=True, slots=True)
class Replicas:
    """What a plan knows of the replicas, which are alike.

    Args:
        count: of them.
        places: most trajectories that one runs at once.
        kv_tokens: that its KV cache holds.
        step_latency_s: seconds of a decoding step by batch size.
        p50, p90: quantiles of recent lengths, in tokens.
    """

    count: int
    places: int
    kv_tokens: int
    step_latency_s: Callable[[int], float]
    p50: float
    p90: float

    def max_batch(self, length: float) -> int:
        """Most trajectories of a length that one holds."""
        return max(1, min(self.places, int(self.kv_tokens // length)))


def feed(arm: str, replicas: Replicas, count: int, predicted: Mapping[str, Sequence[float]]) -> Feed:
    """A fresh feed of a batch of `count` trajectories in order of arrival.

    Args:
        arm: `FCFS`, `LEAST_LOADED`, or whose predictions and `ORDER` or `SPLIT`, as in "oracle split".
        replicas: that are fed.
        count: of trajectories.
        predicted: tokens for each trajectory, by whose prediction it is.
    """
    if arm == FCFS:
        return Own([range(replica, count, replicas.count) for replica in range(replicas.count)])
    if arm == LEAST_LOADED:
        return Shared(range(count))
    name, _, how = arm.rpartition(" ")
    lengths = predicted[name]
    if how == ORDER:
        return Shared(longest_first(lengths))
    plan = plan_dispatch(
        lengths,
        replicas.count,
        step_latency_s=replicas.step_latency_s,
        max_batch=replicas.max_batch,
        p50=replicas.p50,
        p90=replicas.p90,
        alpha=ALPHA,
    )
    return Own(plan.queues, lengths)


def arms(names: Sequence[str]) -> list[str]:
    """All arms with these predictions, beside those without any."""
    return [FCFS, LEAST_LOADED, *(f"{name} {how}" for name in names for how in (ORDER, SPLIT))]
