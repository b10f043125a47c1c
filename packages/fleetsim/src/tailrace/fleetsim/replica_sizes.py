"""How many devices a replica should span (tensor parallelism), profiled before a run (RollPacker, section 4.2)."""

from __future__ import annotations

from collections.abc import Mapping

from tailrace.fleetsim.config import RolloutFleet
from tailrace.fleetsim.errors import WorkError
from tailrace.fleetsim.generation import BatchSample, batch_of, dealt, generate
from tailrace.fleetsim.replica_pool import Decode, Prefill
from tailrace.fleetsim.workload.workload import Workload


def best_size(
    costs: Mapping[int, tuple[Decode, Prefill]],
    workload: Workload,
    rollout: RolloutFleet,
    *,
    devices: int,
    groups: int,
    samples: int,
) -> int:
    """The size with which a batch is generated soonest if all of it starts at once (no tail batching); the smallest of equals.

    Args:
        costs: of each size.
        devices: of all replicas together.
        groups, samples: of the batch, and of each group.
    """
    batch = batch_of(workload, groups, samples)
    return min(sorted(costs), key=lambda size: _takes_s(costs[size], batch, rollout, max(1, devices // size)))


def _takes_s(costs: tuple[Decode, Prefill], batch: list[BatchSample], rollout: RolloutFleet, replicas: int) -> float:
    """Seconds until the last trajectory finishes; infinite if one does not fit into the KV cache."""
    try:
        return max(at for at, _ in generate(costs, dealt(batch, replicas), rollout))
    except WorkError:
        return float("inf")
