"""A random case from a seed: a pipeline, a small fleet, and what breaks on it."""

from __future__ import annotations

from random import Random
from typing import Any

from tailrace.fleetsim.fuzz.case import POLICIES, Case
from tailrace.fleetsim.fuzz.faults import FaultKind
from tailrace.fleetsim.fuzz.options import draw_policy

SURPLUS_ADMISSION = "bounded"  # only it makes room for surplus groups


def draw_case(seed: int) -> Case:
    """The case of a seed. The same seed gives the same case, until this module changes."""
    random = Random(f"tailrace fuzz {seed}")
    replicas = random.choice([1, 1, 2, 2, 3, 4, 6])
    pipeline = _pipeline(random)
    samples = pipeline["samples_per_prompt"] + pipeline["batching"].get("surplus_samples", 0)
    max_tokens = random.choice([48, 96, 200])
    delays = _delays(random)
    content: dict[str, Any] = {
        "seed": seed,
        "pipeline": pipeline,
        "replicas": replicas,
        "relays": random.choice([1, 1, 1, 2, 3]),
        "replica": _replica(random, max_tokens),
        "costs": _costs(random),
        "weights": {
            "stall_s": random.choice([0.0, 0.1, 1.0]),
            "broadcast_s": random.choice([0.0, 0.2, 2.0]),
            "pull_s": random.choice([0.01, 0.2, 1.5]),
            "keep": random.choice([0, 1, 1, 2]),
        },
        "delays": delays,
        "workload": _workload(random, max_tokens),
        "max_tokens": max_tokens,
        "evaluation": {"size": random.choice([0, 2, 2, 5]), "every": random.choice([0, 1, 2])},
        "checkpoint_every": random.choice([1, 1, 2, 3]),
        "scoring_attempts": random.randint(1, 3),
        "failed_groups_limit": random.choice([1_000, 1_000, 1_000, 3]),
        "scoring_failures": random.choice([0.0, 0.0, 0.0, 0.05, 0.25]),
        "messages": {
            "delay_s": random.choice([0.0, 0.02, 0.3, 1.5]),
            "repeat": random.choice([0.0, 0.0, 0.1, 0.5]),
        },
    }
    if pipeline["relocation"]["name"] == "best-fit" and random.random() < 0.7:
        _with_a_tail(content)
    # A rough second for each group of a step: faults fall where something happens.
    replicas, max_tokens = content["replicas"], content["max_tokens"]
    step_s = 0.5 + pipeline["prompts_per_step"] * samples * max_tokens * 0.004 / replicas
    counts = {"replica": replicas, "relay": content["relays"]}
    faults = (_fault(random, counts, pipeline["steps"], step_s, delays) for _ in range(_how_many(random)))
    content["faults"] = tuple(faults)
    return Case.model_validate(content)


def _with_a_tail(content: dict[str, Any]) -> None:
    """Repacking finds something to do only where a few long trajectories are left on several replicas with room."""
    content["replicas"] = max(3, content["replicas"])
    content["pipeline"] |= {"prompts_per_replica": 4, "prompts_per_step": 4, "buffer_prompts": None}
    content["pipeline"]["relocation"] |= {"period_s": 0.5, "kv_threshold": 0.9, "roofline_batch": 64}
    content["max_tokens"] = max(96, content["max_tokens"])
    content["workload"]["response"] = {"median": content["max_tokens"] * 0.2, "sigma": 1.2}
    content["replica"] |= {"kv_capacity_tokens": 12 * (content["max_tokens"] + 25), "max_running": 24}
    content["delays"]["snapshot_s"] = 0.25


def _pipeline(random: Random) -> dict[str, Any]:
    policies = {axis: draw_policy(random, axis) for axis in POLICIES}
    if policies["admission"]["name"] != SURPLUS_ADMISSION:
        policies["batching"].pop("surplus_groups", None)
    surplus = policies["batching"].get("surplus_groups", 0)
    batch = random.choice([1, 2, 3, 4, 6])
    # Fewer open groups than a batch has would never fill one.
    room = None if random.random() < 0.6 else batch + surplus + random.randint(0, 2 * batch)
    return {
        **policies,
        "steps": random.choice([1, 2, 3, 4, 5, 8]),
        "prompts_per_step": batch,
        "samples_per_prompt": random.choice([2, 2, 3, 4]),
        "prompts_per_replica": random.choice([1, 2, 4, 6]),
        "buffer_prompts": room,
        "cycle_s": random.choice([0.0, 0.0, 0.5, 2.0]),
    }


def _replica(random: Random, max_tokens: int) -> dict[str, Any]:
    """Half of the fleets are so small that trajectories wait and are preempted; in the others relocation finds room."""
    largest = max_tokens + 24 + 1
    tight = random.random() < 0.5
    return {
        "kv_capacity_tokens": int(largest * random.choice([1.0, 1.2, 2.0] if tight else [4.0, 12.0])) + 1,
        "max_running": random.choice([1, 2, 4] if tight else [8, 24]),
        "prefix_cached": random.choice([0.0, 0.8]),
        "start_s": random.choice([0.0, 1.0]),
        "restart_s": random.choice([0.0, 0.5, 4.0]),
    }


def _costs(random: Random) -> dict[str, float]:
    return {
        "k1": random.choice([0.0, 1e-6, 2e-5]),
        "k2": random.choice([1e-3, 1e-2]),
        "k3": random.choice([1e-4, 2e-3]),
        "k4": random.choice([2e-3, 2e-2]),
        "prefill_s": random.choice([0.0, 1e-4, 2e-3]),
        "train_s": random.choice([1e-5, 5e-4, 4e-3]),
        "optimizer_s": random.choice([0.0, 0.5]),
        "data_s": random.choice([0.0, 0.3]),
    }


def _delays(random: Random) -> dict[str, float]:
    return {
        "reward_s": random.choice([0.0, 0.1, 1.0]),
        "report_s": random.choice([0.05, 0.25, 1.0]),
        "snapshot_s": random.choice([0.25, 1.0, 3.0]),
        "checkpoint_s": random.choice([0.0, 0.5, 4.0]),
        "route_s": random.choice([0.0, 0.0, 0.05]),
        "detect_s": random.choice([0.0, 0.5, 2.0]),
        "hang_s": random.choice([3.0, 8.0]),
        "trainer_restart_s": random.choice([0.0, 1.0, 5.0]),
        "relay_restart_s": random.choice([0.0, 0.5, 6.0]),
        "data_restart_s": random.choice([0.0, 1.0]),
    }


def _workload(random: Random, max_tokens: int) -> dict[str, Any]:
    workload: dict[str, Any] = {
        "prompt": {"median": 12.0, "sigma": 0.3, "cap": 24},
        "response": {"median": max_tokens * random.choice([0.1, 0.2, 0.4]), "sigma": random.choice([0.4, 1.2])},
        "correlation": random.choice([0.0, 0.5, 0.9]),
        "drift": random.choice([None, None, 1.1]),
        "reward_latency": random.choice([None, None, {"median": 0.2, "sigma": 1.0, "cap": 3.0}]),
        "solve_rate": {"mean": random.choice([0.3, 0.6]), "spread": random.choice([0.0, 1.0])},
    }
    if random.random() < 0.3:
        calls = random.choice([{"counts": {"0": 1.0, "1": 1.0, "3": 0.5}}, {"counts": {"2": 1.0}}])
        workload["environment"] = {"calls": calls, "latency": {"median": 0.5, "sigma": 0.8, "cap": 4.0}}
    return workload


def _how_many(random: Random) -> int:
    return random.choice([0, 1, 2, 3, 4, 6])


_KINDS: tuple[tuple[FaultKind, int], ...] = (
    (FaultKind.KILL, 8),
    (FaultKind.HANG, 4),
    (FaultKind.STALL, 2),
    (FaultKind.SLOW, 2),
    (FaultKind.PARTITION, 4),
    (FaultKind.TORN_PULL, 2),
    (FaultKind.LOST_CHECKPOINT, 2),
    (FaultKind.DAMAGED_CHECKPOINT, 1),
    (FaultKind.BROKEN_SCORING, 1),
    (FaultKind.REPLAY, 2),
    (FaultKind.CRASH, 2),
)


def _fault(
    random: Random, counts: dict[str, int], steps: int, step_s: float, delays: dict[str, float]
) -> dict[str, Any]:
    kind = random.choices([kind for kind, _ in _KINDS], [weight for _, weight in _KINDS])[0]
    fault: dict[str, Any] = {
        "kind": kind,
        "at_step": random.randint(0, steps - 1),
        "after_s": round(random.choice([0.0, 0.5, 1.0, 2.0]) * random.random() * step_s, 3),
    }
    replica = {"role": "replica", "member": f"r{random.randrange(counts['replica'])}"}
    relay = {"role": "relay", "member": str(random.randrange(counts["relay"]))}
    trainer, scorer, data = ({"role": role, "member": "0"} for role in ("trainer", "scorer", "data"))
    if kind is FaultKind.KILL:
        fault |= random.choice([replica, replica, replica, trainer, trainer, relay, relay, relay, scorer, data])
    elif kind is FaultKind.HANG:
        fault |= random.choice([replica, replica, trainer, relay, scorer, data])
    elif kind in (FaultKind.SLOW, FaultKind.PARTITION):
        fault |= random.choice([replica, replica, trainer])
    elif kind in (FaultKind.TORN_PULL, FaultKind.STALL):
        fault |= replica
    if kind is FaultKind.SLOW:
        fault |= {"speed": random.choice([0.1, 0.5]), "for_s": random.choice([1.0, 10.0])}
    elif kind is FaultKind.PARTITION:
        fault["for_s"] = round(delays["hang_s"] * random.choice([0.1, 0.4, 0.9, 2.0]), 3)
    elif kind is FaultKind.TORN_PULL:
        fault["count"] = random.choice([1, 1, 2, 3])
    elif kind is FaultKind.BROKEN_SCORING:
        fault["for_s"] = random.choice([0.5, 3.0])
    return fault
