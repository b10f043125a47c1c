"""Replicas that are alike: one kind of devices, so many for each replica, at one site."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from tailrace.fleetsim.config import RolloutFleet
from tailrace.fleetsim.errors import FleetError


class Decode(Protocol):
    """The cost of a decoding step on one replica."""

    per_token_s: float
    kv_capacity_tokens: int

    def fixed_s(self, running: int) -> float:
        """Seconds of a step that do not depend on the KV cache."""
        ...


class Prefill(Protocol):
    """The cost of prefill on one replica."""

    def seconds(self, tokens: int, cached: int = 0) -> float:
        """Seconds of prefill for a context of `tokens`, of which the first `cached` are in the cache."""
        ...


@dataclass(frozen=True, slots=True)
class WeightCosts:
    """The cost of moving a version, in seconds.

    Args:
        stall_s: stall of the trainer for one publish.
        broadcast_s: time from when the master has it until the last node has it.
        pull_s: time of a replica's pull from its node's memory, or of the whole global synchronisation.
    """

    stall_s: float
    broadcast_s: float
    pull_s: float


@dataclass(frozen=True, slots=True)
class ReplicaPool:
    """Replicas that are alike.

    Args:
        decode, prefill: costs of a replica.
        weights: cost of moving a version to them. The stall is the trainer's, whatever the pool.
        rollout: their table of the configuration.
        replicas: how many of them a run starts with.
        tp: devices of a replica at the start.
        name: of unequal replicas; empty where all are alike.
        sized: costs of replicas of other numbers of devices, to which they can be resized.
    """

    decode: Decode
    prefill: Prefill
    weights: WeightCosts
    rollout: RolloutFleet
    replicas: int = 1
    tp: int = 1
    name: str = ""
    sized: Mapping[int, tuple[Decode, Prefill]] = field(default_factory=dict)

    @property
    def slowest_step_s(self) -> float:
        """Seconds of a decoding step of a full batch on a full KV cache."""
        decode = self.decode
        return decode.fixed_s(self.rollout.max_running) + decode.per_token_s * decode.kv_capacity_tokens

    def costs(self, tp: int) -> tuple[Decode, Prefill]:
        """The costs of a replica of `tp` devices.

        Raises:
            FleetError: no replica of that size can be simulated.
        """
        if tp == self.tp:
            return self.decode, self.prefill
        if tp not in self.sized:
            known = ", ".join(map(str, sorted([self.tp, *self.sized])))
            raise FleetError(f"found a replica of {tp} devices, expected one of: {known}")
        return self.sized[tp]


def pool_of(pools: Sequence[ReplicaPool], replica: str) -> ReplicaPool:
    """The pool of a replica, by its name: `r0`, `r1`, ... are of the first pool, the next of the second, and so on.

    Replicas that a policy starts beyond those of the start are of the first pool.
    """
    if len(pools) == 1:
        return pools[0]
    number = int(replica[1:])
    for pool in pools:
        if number < pool.replicas:
            return pool
        number -= pool.replicas
    return pools[0]
