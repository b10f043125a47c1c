"""How long replicas take to generate a batch that all starts at once: engines alone, without a run around them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tailrace.fleetsim.config import RolloutFleet
from tailrace.fleetsim.engine import ModelledEngine
from tailrace.fleetsim.engine.work import Work
from tailrace.fleetsim.replica_pool import Decode, Prefill
from tailrace.fleetsim.workload.workload import Workload

_LATEST_S = 1e12


@dataclass(frozen=True, slots=True)
class BatchSample:
    """One trajectory of a batch: its name, its prompt, and its turns as in `Work`."""

    name: str
    prompt_tokens: int
    turns: tuple[tuple[int, float], ...]

    @property
    def response_tokens(self) -> int:
        """Of all turns."""
        return sum(tokens for tokens, _ in self.turns)

    @property
    def tokens(self) -> int:
        """Of the prompt and the response."""
        return self.prompt_tokens + self.response_tokens


def batch_of(workload: Workload, groups: int, samples: int) -> list[BatchSample]:
    """The first groups of a workload, as they are at version 0."""
    return [
        BatchSample(f"{group}.{index}", sample.prompt_tokens, sample.turns)
        for group in range(groups)
        for index, sample in enumerate(workload.group(group, samples))
    ]


def dealt(batch: Sequence[BatchSample], replicas: int) -> list[Sequence[BatchSample]]:
    """A batch dealt out to replicas in its order, without a look at lengths."""
    return [batch[index::replicas] for index in range(replicas)]


def generate(
    costs: tuple[Decode, Prefill], queues: Sequence[Sequence[BatchSample]], rollout: RolloutFleet
) -> list[tuple[float, str]]:
    """The seconds after which each trajectory ends, and its name, in order of replicas.

    Args:
        costs: of a replica.
        queues: what each replica generates, in the order in which it begins.
        rollout: the replicas' table of a configuration.

    Raises:
        WorkError: a trajectory does not fit into a replica's KV cache.
    """
    decode, prefill = costs
    ends: list[tuple[float, str]] = []
    for queue in queues:
        engine = ModelledEngine(
            decode, prefill, max_running=rollout.max_running, prefix_cached=rollout.prefix_cached, start_s=0.0
        )
        engine.add([Work(one.name, one.prompt_tokens, 0, one.turns) for one in queue], 0.0)
        engine.advance(_LATEST_S)
        ends += [(at, name) for at, name, _ in engine.take_finished()]
    return ends
