"""Replicas in virtual time: the simulator's engine, with the costs of a machine that was measured or of a modelled device."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from dispatching.arms import Replicas
from dispatching.feeding import Feed, next_placements

from tailrace.fleetsim.cost import DecodeCost, PrefillCost
from tailrace.fleetsim.engine import ModelledEngine, Work
from tailrace.fleetsim.hardware import find_device, model
from tailrace.fleetsim.profile.machine import load_machine


@dataclass(frozen=True, slots=True)
class Costs:
    """What decoding and prefill cost on one replica, and by how much lengths are stretched for it.

    Args:
        name: for tables.
        stretch: tokens of the model that is simulated for one of the policy that was measured.
    """

    name: str
    decode: DecodeCost
    prefill: PrefillCost
    stretch: int

    @classmethod
    def of(cls, name: str, stretch: int) -> Costs:
        """A machine's profile by name or file, or ``MODEL on DEVICE``, one device a replica.

        Raises:
            TailraceError: there is no such profile, model or device.
        """
        shape, on, device = name.partition(" on ")
        if on:
            of = (model(shape), find_device(device), 1)
            return cls(name, DecodeCost.of(*of), PrefillCost.of(*of), stretch)
        machine = load_machine(name)
        costs = machine.decode
        decode = DecodeCost.fitted(costs.k1, costs.k2, costs.k3, costs.k4, costs.kv_capacity_tokens)
        prefill = machine.prefill
        return cls(name, decode, PrefillCost(prefill.per_token_s, 0.0, prefill.per_trajectory_s), stretch)

    def replicas(self, count: int, places: int, prompt_tokens: float, p50: float, p90: float) -> Replicas:
        """Replicas as a plan sees them: contexts of a prompt and half of a median response."""
        context = prompt_tokens + p50 / 2

        def step_latency_s(batch: int) -> float:
            return self.decode.step_s(batch, batch * context)

        return Replicas(count, places, self.decode.kv_capacity_tokens, step_latency_s, p50, p90)


def makespan_s(
    feed: Feed, costs: Costs, replicas: int, places: int, prompts: Sequence[int], lengths: Sequence[int]
) -> float:
    """Seconds until the last trajectory ends.

    Args:
        feed: says who takes what.
        costs: of a replica.
        replicas: number of them.
        places: most trajectories that one runs.
        prompts: tokens of each trajectory's prompt.
        lengths: tokens that each really generates.
    """
    engines = [ModelledEngine(costs.decode, costs.prefill, max_running=places) for _ in range(replicas)]
    held, now, left = [0] * replicas, 0.0, len(lengths)
    while left:
        placed = next_placements(feed, held, places)
        for replica, engine in enumerate(engines):
            works = [
                Work(str(position), prompts[position], 0, lengths[position])
                for where, position in placed
                if where == replica
            ]
            engine.add(works, now)
            held[replica] += len(works)
        now = min(engine.next_finish_s() for engine in engines)
        if now == math.inf:
            raise RuntimeError(f"found {left} trajectories that no replica takes, expected none")
        for replica, engine in enumerate(engines):
            engine.advance(now)
            ended = len(engine.take_finished())
            held[replica] -= ended
            left -= ended
    return now
