"""How long replicas take to generate a batch that all starts at once: engines alone, without a run around them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from math import inf

from tailrace.fleetsim.engine import ModelledEngine
from tailrace.fleetsim.engine.state import Work
from tailrace.fleetsim.errors import WorkError
from tailrace.fleetsim.fleet.config import RolloutFleet
from tailrace.fleetsim.fleet.pools import Decode, Prefill
from tailrace.fleetsim.workload.workload import Workload


@dataclass(frozen=True, slots=True)
class BatchSample:
    """One trajectory of a batch: its name, its prompt, and its turns as in `Sample`."""

    name: str
    prompt_tokens: int
    turns: tuple[tuple[int, float], ...]

    @property
    def response_tokens(self) -> int:
        """Response tokens of all turns."""
        return sum(tokens for tokens, _ in self.turns)

    @property
    def tokens(self) -> int:
        """Tokens of the prompt and the response."""
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
        engine = ModelledEngine(decode, prefill, max_running=rollout.max_running, start_s=0.0)
        ends += _alone(engine, queue, rollout.prefix_cached)
    return ends


def _alone(engine: ModelledEngine, queue: Sequence[BatchSample], cached: float) -> list[tuple[float, str]]:
    """What one engine generates, with environments that answer each turn after its latency, as many at once as there are."""
    of = {one.name: one for one in queue}
    turn = dict.fromkeys(of, 0)
    away: list[
        tuple[float, int, str]
    ] = []  # until when; the first to leave is the first of those that come back together
    ends: list[tuple[float, str]] = []
    engine.add([Work(one.name, one.prompt_tokens, 0, one.turns[0][0]) for one in queue], 0.0)
    left = 0
    while (now := min(engine.next_finish_s(), away[0][0] if away else inf)) < inf:
        engine.advance(now)
        for at, name, _ in engine.take_finished():
            if turn[name] + 1 == len(of[name].turns):
                ends.append((at, name))
                continue
            left += 1
            heappush(away, (at + of[name].turns[turn[name]][1], left, name))
            turn[name] += 1
        back = []
        while away and away[0][0] <= now:
            one = of[heappop(away)[2]]
            done = sum(tokens for tokens, _ in one.turns[: turn[one.name]])
            response, context = done + one.turns[turn[one.name]][0], one.prompt_tokens + done
            back.append(Work(one.name, one.prompt_tokens, done, response, int(cached * context)))
        engine.add(back, now)
    return ends


# How many devices a replica should span (tensor parallelism), profiled before a run (RollPacker, section 4.2).


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
