"""The profiles that routing plans replicas with: the cost of a step, by pool, and the room of each replica. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tailrace.contracts import ReplicaView
from tailrace.repack.decoding import Decoding
from tailrace.repack.errors import LoadError
from tailrace.repack.throughput import ThroughputModel

PoolCost = tuple[str, float, float, float, float]
"""A pool's name, and k1 to k4 of its replicas."""


def models_of(costs: Sequence[PoolCost]) -> dict[str, ThroughputModel]:
    """The cost model of each pool.

    Raises:
        LoadError: a pool occurs twice, or a coefficient is out of its range.
    """
    models: dict[str, ThroughputModel] = {}
    for name, *coefficients in costs:
        if name in models:
            raise LoadError(f"found pool {name!r} twice in pool_costs, expected each once")
        models[name] = ThroughputModel(*coefficients)
        if not models[name].step_latency_s(0, 0) > 0:
            raise LoadError(
                f"found k2 = k4 = 0 of pool {name!r} in pool_costs, expected a sum above 0: a step takes time"
            )
    return models


def profiles(
    replicas: Sequence[ReplicaView], length: float, model: ThroughputModel, by_pool: Mapping[str, ThroughputModel]
) -> list[Decoding]:
    """The profile of each replica, with trajectories of a length in tokens; equal replicas share one.

    Args:
        model: the cost model of replicas whose pool has none of its own.
        by_pool: those that pools have.
    """
    say = all(view.kv_capacity_tokens for view in replicas)  # else the room for tokens is not planned with

    def decoding(slots: int, room: int, own: ThroughputModel) -> Decoding:
        def step_latency_s(batch: int) -> float:
            return own.step_latency_s(batch * length, batch)

        def max_batch(tokens: float) -> int:
            return max(1, min(slots, int(room // tokens))) if room else slots

        return Decoding(step_latency_s, max_batch)

    kinds = [
        (max(1, view.capacity), view.kv_capacity_tokens if say else 0, by_pool.get(view.pool, model))
        for view in replicas
    ]
    made = {kind: decoding(*kind) for kind in dict.fromkeys(kinds)}
    return [made[kind] for kind in kinds]


def paces(kinds: Sequence[Decoding], length: float) -> list[float]:
    """Seconds that a token of a full batch costs each replica; 1 if all are equal, so that tokens are what is compared."""
    if len(set(kinds)) == 1:
        return [1.0] * len(kinds)
    return [kind.step_s(batch) / batch for kind in kinds for batch in (kind.largest(length),)]
