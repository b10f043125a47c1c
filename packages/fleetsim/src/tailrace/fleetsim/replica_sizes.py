"""How many devices a replica should span (tensor parallelism), profiled before a run (RollPacker, section 4.2)."""

from __future__ import annotations

from collections.abc import Mapping

from tailrace.fleetsim.config import RolloutFleet
from tailrace.fleetsim.engine import ModelledEngine
from tailrace.fleetsim.engine.work import Work
from tailrace.fleetsim.errors import WorkError
from tailrace.fleetsim.replica_pool import Decode, Prefill
from tailrace.fleetsim.workload.workload import Workload

_LATEST_S = 1e12


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
    works = [
        (f"{group}.{index}", sample.prompt_tokens, sample.turns)
        for group in range(groups)
        for index, sample in enumerate(workload.group(group, samples))
    ]
    return min(sorted(costs), key=lambda size: _takes_s(costs[size], works, rollout, max(1, devices // size)))


def _takes_s(
    costs: tuple[Decode, Prefill],
    works: list[tuple[str, int, tuple[tuple[int, float], ...]]],
    rollout: RolloutFleet,
    replicas: int,
) -> float:
    """Seconds until the last trajectory finishes; infinite if one does not fit into the KV cache."""
    decode, prefill = costs
    last_s = 0.0
    for index in range(replicas):
        engine = ModelledEngine(
            decode, prefill, max_running=rollout.max_running, prefix_cached=rollout.prefix_cached, start_s=0.0
        )
        try:
            engine.add([Work(name, prompt, 0, turns) for name, prompt, turns in works[index::replicas]], 0.0)
        except WorkError:
            return float("inf")
        engine.advance(_LATEST_S)
        last_s = max([last_s, *(at for at, _, _ in engine.take_finished())])
    return last_s
