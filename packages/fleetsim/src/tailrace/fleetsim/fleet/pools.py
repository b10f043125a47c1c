"""Pools of replicas that are alike, with their costs: decoding, prefill, and how weights come to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from tailrace.fleetsim.cost import TENSOR_S, DecodeCost, PrefillCost, WeightCost
from tailrace.fleetsim.errors import FleetError
from tailrace.fleetsim.fleet.config import FleetConfig, RolloutFleet
from tailrace.fleetsim.fleet.layout import FleetLayout, PoolLayout
from tailrace.fleetsim.hardware.links import Link
from tailrace.pipeline.config.models import RunConfig

Costs = tuple[DecodeCost, PrefillCost]


def pool_costs(config: RunConfig, split: FleetLayout, pool: PoolLayout) -> dict[int, Costs]:
    """The costs of a pool's replicas by their devices: their own number, and every other that they can be resized to.

    Those are powers of two of devices of one machine that hold a whole response.

    Raises:
        FleetError: a replica does not hold the model, or not the longest response.
    """
    own = DecodeCost.of(split.model, pool.device, pool.tp)
    if config.rollout.max_tokens > own.kv_capacity_tokens:
        raise FleetError(
            f"found rollout.max_tokens = {config.rollout.max_tokens}, but the KV cache of a replica of {split.model.name} on "
            f"{pool.tp} x {pool.device.name} holds {own.kv_capacity_tokens} tokens; expected at most that, or "
            "more devices for a replica"
        )
    costs = {pool.tp: (own, PrefillCost.of(split.model, pool.device, pool.tp))}
    for size in (2**power for power in range(pool.device.gpus_per_node.bit_length())):
        if size == pool.tp or size > min(pool.device.gpus_per_node, pool.gpus):
            continue
        try:
            decode = DecodeCost.of(split.model, pool.device, size)
            if decode.kv_capacity_tokens >= config.rollout.max_tokens:
                costs[size] = decode, PrefillCost.of(split.model, pool.device, size)
        except FleetError:  # such a replica cannot be
            continue
    return costs


def replica_pool(
    table: FleetConfig, split: FleetLayout, pool: PoolLayout, costs: dict[int, Costs], *, peers: bool = False
) -> ReplicaPool:
    """A pool of a layout with its costs.

    Args:
        peers: whether replicas pull from each other, so that no chain brings a version to each machine.
    """
    decode, prefill = costs[pool.tp]
    return ReplicaPool(
        decode=decode,
        prefill=prefill,
        weights=_weights(table, split, pool, peers=peers),
        rollout=pool.table,
        replicas=pool.replicas,
        tp=pool.tp,
        name=pool.name,
        sized={size: found for size, found in costs.items() if size != pool.tp},
    )


def _weights(table: FleetConfig, split: FleetLayout, pool: PoolLayout, *, peers: bool) -> WeightCosts:
    if peers and table.weights != "relays":
        raise FleetError(f"found relay.mode = 'peer' with fleet.weights = {table.weights!r}, expected 'relays'")
    tensor_s = TENSOR_S if table.weights == "store" else 0.0  # its engines take tensor by tensor
    cost = WeightCost.of(split.model, pool.device, pool.tp, tensor_s=tensor_s)
    if split.colocated and (pool.hybrid or len(split.pools) == 1):
        shards = min(split.trainer_gpus, pool.device.gpus_per_node)
        return WeightCosts(stall_s=0.0, broadcast_s=0.0, pull_s=cost.reshard_s(shards))
    if table.weights == "global":
        takes_s = cost.global_sync_s(split.trainer_gpus, split.rollout_gpus)
        return WeightCosts(stall_s=takes_s, broadcast_s=0.0, pull_s=takes_s)
    far_s = _far_s(table, pool, cost)
    if table.weights == "store":
        return WeightCosts(stall_s=cost.peer_s(), broadcast_s=far_s, pull_s=cost.pull_s())
    if peers:
        return WeightCosts(stall_s=cost.push_s(), broadcast_s=far_s, pull_s=cost.pull_s(), peer_s=cost.peer_s())
    # One machine of a site receives a version, and a chain through all of the site's takes it on.
    nodes = sum(other.nodes for other in split.pools if _site(table, other) == _site(table, pool))
    return WeightCosts(stall_s=cost.push_s(), broadcast_s=far_s + cost.broadcast_s(nodes), pull_s=cost.pull_s())


def _site(table: FleetConfig, pool: PoolLayout) -> str:
    return pool.table.site or table.trainer.site


def _far_s(table: FleetConfig, pool: PoolLayout, cost: WeightCost) -> float:
    """Seconds for a version to cross to the pool's site; 0 at the trainer's."""
    if table.cross_datacenter:
        return cost.cross_datacenter_s()
    site = _site(table, pool)
    if site == table.trainer.site:
        return 0.0
    at = table.sites[site]
    return Link(site, at.bandwidth, at.latency_s).transfer_s(cost.weight_bytes * at.share)


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
        peer_s: where replicas pull from each other, time until the source's version is in the replica's node.
    """

    stall_s: float
    broadcast_s: float
    pull_s: float
    peer_s: float = 0.0


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
