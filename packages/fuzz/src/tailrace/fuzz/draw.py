"""A random case from a seed: a pipeline, a small fleet, and what breaks on it."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

from tailrace.contracts import BatchingPolicy, Progress
from tailrace.faulttol.injection import LOAD, PHASES
from tailrace.fuzz.case import Case
from tailrace.fuzz.errors import CaseError
from tailrace.fuzz.faults import BreakKind, Moment
from tailrace.fuzz.policies import (
    APART,
    NEWER,
    NONE,
    POLICIES,
    SHARE_OF_NEWER,
    Policies,
    admits_rounds,
    as_it_is,
    draw_newer,
    draw_options,
    draw_policy,
    launches_rounds,
    lends_devices,
    streams_parts,
    takes,
    yields_devices,
)
from tailrace.pipeline.config.models import Choice
from tailrace.pipeline.run.ranking import PLANS_WITH_PREDICTIONS

ADMIT_ROUNDS = ("on-policy", "one-step")
WATCH_ROUNDS = ("adaptive-tp", "scale-down", "adaptive-tp-scale-down")
WATCH_ITERATIONS = ("balanced",)
MACHINES = 1 / 3
"""Share of the cases whose members stand on machines, but for those with sites or shared devices."""
YIELD = ("hybrid",)
IN_A_STEP = 0.5
"""Share of the cases with batches in order in which the trainer is struck in a phase of its steps."""
_TRAINER_PHASES = tuple(phase for phase in PHASES["trainer"] if phase != LOAD)


def draw_case(seed: int, policies: Policies = NONE) -> Case:
    """The case of a seed. The same seed gives the same case, until this module changes or a plugin comes or goes.

    Args:
        policies: those of yours that are in every case, by axis.
    """
    random = Random(f"tailrace fuzz {seed}")
    replicas = random.choice([1, 1, 2, 2, 3, 4, 6])
    pipeline = _pipeline(random, policies)
    # The rest of a seed's case is as it was before there were any.
    newer = Random(f"tailrace fuzz {seed}, newer policies")
    if "admission" not in policies or admits_rounds(Choice(**pipeline["admission"]), policies):
        pipeline |= draw_newer(newer, "batching", policies)
    pipeline |= draw_newer(Random(f"tailrace fuzz {seed}, newer routing"), "routing", policies)
    pipeline |= draw_newer(Random(f"tailrace fuzz {seed}, newer sync"), "sync", policies)
    lends = False
    if launches_rounds(Choice(**pipeline["batching"]), policies):
        sizes = Random(f"tailrace fuzz {seed}, sizes of replicas")
        pipeline |= draw_newer(sizes, "provisioning", policies, 0.5, WATCH_ROUNDS)  # elsewhere they do nothing
        if "admission" not in policies:
            pipeline["admission"] = {"name": newer.choice(ADMIT_ROUNDS)}
        lends = lends_devices(Choice(**pipeline["provisioning"]), policies)
        lends = lends and not {"admission", "training"} & set(policies)
        if lends:
            pipeline |= {"admission": {"name": "on-policy"}, "training": {"name": "streamed"}}
            pipeline |= draw_newer(Random(f"tailrace fuzz {seed}, fetches"), "training", policies)
        if streams_parts(Choice(**pipeline["training"]), policies):
            pipeline["training"] = {"name": newer.choice(("full-batch", "mini-batch"))}
    else:
        stages = Random(f"tailrace fuzz {seed}, balance of stages")
        pipeline |= draw_newer(stages, "provisioning", policies, names=WATCH_ITERATIONS)
    balances = pipeline["provisioning"]["name"] in WATCH_ITERATIONS
    hybrids = Random(f"tailrace fuzz {seed}, hybrids")
    if not lends and not balances and pipeline["provisioning"]["name"] == "static":
        pipeline |= draw_newer(hybrids, "provisioning", policies, names=YIELD)
    yields = yields_devices(Choice(**pipeline["provisioning"]), policies)
    if balances:
        pipeline["steps"] = Random(f"tailrace fuzz {seed}, iterations").choice([5, 8, 12])
    pipeline |= draw_options(Random(f"tailrace fuzz {seed}, newer options"), pipeline, policies)
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
    if len(pipeline["relocation"]) > 1 and random.random() < 0.4:  # a policy with options: one that moves something
        _with_a_tail(content)
    # A rough second for each group of a step: faults fall where something happens.
    replicas, max_tokens = content["replicas"], content["max_tokens"]
    step_s = 0.5 + pipeline["prompts_per_step"] * samples * max_tokens * 0.004 / replicas
    counts = {"replica": replicas, "relay": content["relays"]}
    faults = (_fault(random, counts, pipeline["steps"], step_s, delays) for _ in range(_how_many(random)))
    content["faults"] = tuple(faults)
    refusals = Random(f"tailrace fuzz {seed}, refusals")  # as with newer policies
    content["refusals"] = refusals.choice([0.0, 0.0, 0.0, 0.0, 0.0, 0.05, 0.3])
    if pipeline["routing"]["name"] in NEWER["routing"]:
        content["predictions"] = Random(f"tailrace fuzz {seed}, predictions").choice([0.0, 0.4, 1.0, 1.0])
    _plan_with_predictions(Random(f"tailrace fuzz {seed}, plans with predictions"), content, policies)
    if content.get("predictions"):
        ranker = Random(f"tailrace fuzz {seed}, what breaks the ranker")
        many = ranker.choice([0, 0, 1, 3])
        content["faults"] += tuple([_of_the_ranker(ranker, pipeline["steps"], step_s) for _ in range(many)])
    content["far"] = Random(f"tailrace fuzz {seed}, sites").choice([0, 0, 0, 1, 2])
    if balances:
        content["far"] = 0  # it plans for replicas that are all alike
        joiner = Random(f"tailrace fuzz {seed}, what breaks a joiner")
        content["faults"] += tuple(
            [
                _of_a_joiner(joiner, content["replicas"], pipeline["steps"], step_s)
                for _ in range(joiner.choice([0, 1, 2]))
            ]
        )
    environments = Random(f"tailrace fuzz {seed}, environments")
    content["environments"] = _environments(environments)
    if "environment" in content["workload"]:
        many = environments.choice([0, 1, 1, 3])
        content["faults"] += tuple(
            [
                _of_an_environment(environments, content["environments"]["members"], pipeline["steps"], step_s)
                for _ in range(many)
            ]
        )
    content["faults"] += tuple(_attaches(Random(f"tailrace fuzz {seed}, controllers"), pipeline["steps"], step_s))
    content["faults"] += _in_a_step(Random(f"tailrace fuzz {seed}, phases"), pipeline)
    fenced = Random(f"tailrace fuzz {seed}, a fence").random() < SHARE_OF_NEWER
    content["fence"] = fenced and content["checkpoint_every"] == 1
    content["cells"] = Random(f"tailrace fuzz {seed}, cells").choice([1, 1, 2, 2, 3])
    if lends:
        content |= {"colocated": True, "cells": 2, "replicas": content["replicas"] + content["replicas"] % 2, "far": 0}
    if yields:
        content |= _hybrids(hybrids, content["replicas"])
    content |= _machines(Random(f"tailrace fuzz {seed}, machines"), content, step_s)
    pipeline |= draw_newer(Random(f"tailrace fuzz {seed}, recovery"), "recovery", policies)
    detection = Random(f"tailrace fuzz {seed}, detection")
    pipeline |= draw_newer(detection, "detection", policies)
    if "detection" in policies:
        pipeline["detection"] = draw_policy(detection, "detection", policies)
    return Case.model_validate(content)


def _hybrids(random: Random, replicas: int) -> dict[str, Any]:
    """Replicas of which some, or all, stand on the trainer's devices."""
    replicas = random.choice([replicas, max(2, replicas)])
    cells = random.choice([1, 1, 2])
    return {
        "colocated": True,
        "cells": cells,
        "replicas": replicas,
        "hybrids": 0 if random.random() < 0.4 else random.randint(1, replicas),
        "far": 0,
    }


def _plan_with_predictions(random: Random, content: dict[str, Any], policies: Policies) -> None:
    """In some cases the policies that can plan with predicted lengths do, and there is a ranker."""
    chosen, share = random.random() < SHARE_OF_NEWER, random.choice([0.4, 1.0])
    pipeline = content["pipeline"]
    for axis, option in PLANS_WITH_PREDICTIONS:
        if chosen and axis not in policies and option in takes(axis, pipeline[axis]["name"]):
            pipeline[axis] = {**pipeline[axis], option: True}
            content["predictions"] = content.get("predictions") or share


def _with_a_tail(content: dict[str, Any]) -> None:
    """Relocation finds something to do where a few long trajectories are left on several replicas with room."""
    content["replicas"] = max(3, content["replicas"])
    content["pipeline"] |= {"prompts_per_replica": 4, "prompts_per_step": 4, "buffer_prompts": None}
    content["max_tokens"] = max(96, content["max_tokens"])
    content["workload"]["response"] = {"median": content["max_tokens"] * 0.2, "sigma": 1.2}
    content["replica"] |= {"kv_capacity_tokens": 12 * (content["max_tokens"] + 25), "max_running": 24}
    content["delays"]["snapshot_s"] = 0.25


def _pipeline(random: Random, policies: Policies) -> dict[str, Any]:
    drawn = {axis: draw_policy(random, axis, policies) for axis in POLICIES if axis not in APART}
    mine = as_it_is("batching", policies)
    surplus = drawn["batching"].get("surplus_groups", 0) if mine is None else mine.surplus_groups
    while surplus and "surplus" not in takes("admission", drawn["admission"]["name"], policies):
        # That admission makes no room for surplus groups.
        if mine is None:
            surplus = 0
            del drawn["batching"]["surplus_groups"]
        elif "admission" in policies:
            raise CaseError(
                f"found {surplus} surplus groups of a batching policy, expected an admission with 'surplus'"
            )
        else:
            drawn["admission"] = draw_policy(random, "admission")
    batch = random.choice([1, 2, 3, 4, 6])
    # Fewer open groups than a batch has would never fill one.
    room = None if random.random() < 0.6 else batch + surplus + random.randint(0, 2 * batch)
    return {
        **drawn,
        "steps": random.choice([1, 2, 3, 4, 5, 8]),
        "prompts_per_step": batch,
        "samples_per_prompt": random.choice([2, 2, 3, 4]) if mine is None else _needed(mine),
        "prompts_per_replica": random.choice([1, 2, 4, 6]),
        "buffer_prompts": room,
        "cycle_s": random.choice([0.0, 0.0, 0.5, 2.0]),
    }


def _needed(batching: BatchingPolicy) -> int:
    launch = batching.open().next(Progress(0, -1, 0, 0, 0, 0, 0, 1, 1))
    if launch is None:
        raise CaseError(f"found that {batching!r:.60} launches nothing at the start, expected a group")
    return launch.needed


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


_KINDS: tuple[tuple[BreakKind, int], ...] = (
    (BreakKind.KILL, 8),
    (BreakKind.HANG, 4),
    (BreakKind.STALL, 2),
    (BreakKind.SLOW, 2),
    (BreakKind.PARTITION, 4),
    (BreakKind.TORN_PULL, 2),
    (BreakKind.LOST_CHECKPOINT, 2),
    (BreakKind.DAMAGED_CHECKPOINT, 1),
    (BreakKind.BROKEN_SCORING, 1),
    (BreakKind.REPLAY, 2),
    (BreakKind.CRASH, 2),
)


def _environments(random: Random) -> dict[str, Any]:
    return {
        "members": random.choice([1, 1, 2, 3]),
        "sessions": random.choice([None, None, 1, 2, 8]),
        "breaks": random.choice([0.0, 0.0, 0.02, 0.1]),
        "lost": random.choice([0.0, 0.0, 0.5, 1.0]),
        "unanswered": random.choice([0.0, 0.0, 0.0, 0.01]),
        "ends": random.choice([0.0, 0.5, 1.0]),
    }


def _in_a_step(random: Random, pipeline: dict[str, Any]) -> tuple[dict[str, Any], ...]:
    """Of the trainer in a phase of its steps: in few cases, so that most are as they were.

    Where batches are launched in order, in half of them, again and again in one run: what a batch waits for when the trainer
    falls back shows there only.
    """
    in_order = bool(pipeline["admission"].get("batchwise"))
    chosen = random.random() < (IN_A_STEP if in_order else SHARE_OF_NEWER / 3)
    faults = []
    if chosen and in_order:
        pipeline["steps"] = max(5, pipeline["steps"])
    for _ in range((3 if in_order else 1) if chosen else 0):
        kind, phase = random.choice([BreakKind.KILL, BreakKind.KILL, BreakKind.HANG]), random.choice(_TRAINER_PHASES)
        at_step = random.randint(0, pipeline["steps"] - 1)
        faults.append({"kind": kind, "role": "trainer", "member": "0", "at_step": at_step, "phase": phase})
    return tuple(faults)


def _of_an_environment(random: Random, members: int, steps: int, step_s: float) -> dict[str, Any]:
    kind, member = random.choice([BreakKind.KILL, BreakKind.KILL, BreakKind.HANG]), str(random.randrange(members))
    at_step, after_s = random.randint(0, steps - 1), round(random.random() * step_s, 3)
    return {"kind": kind, "role": "environment", "member": member, "at_step": at_step, "after_s": after_s}


def _machines(random: Random, content: dict[str, Any], step_s: float) -> dict[str, Any]:
    """In a third of the cases machines, of which up to all but one die."""
    if random.random() >= MACHINES or content.get("far") or content.get("colocated"):
        return {}
    count, steps = random.choice([2, 3, 3, 5]), content["pipeline"]["steps"]
    dying = [
        {
            "kind": BreakKind.MACHINE,
            "member": str(random.randrange(count)),
            "at_step": random.randint(0, steps - 1),
            "after_s": round(random.choice([0.0, 0.5, 2.0]) * random.random() * step_s, 3),
        }
        for _ in range(random.choice([0, 1, 1, 2, 4]))
    ]
    return {"machines": count, "faults": content["faults"] + tuple(dying)}


def _attaches(random: Random, steps: int, step_s: float) -> Iterator[dict[str, Any]]:
    """In some cases controllers die and others attach, at any moment of their work."""
    if random.random() >= SHARE_OF_NEWER:
        return
    for _ in range(random.choice([1, 1, 2, 4])):
        yield {
            "kind": BreakKind.ATTACH,
            "at_step": random.randint(0, steps - 1),
            "after_s": round(random.choice([0.0, 0.5, 2.0]) * random.random() * step_s, 3),
            "for_s": random.choice([0.0, 0.2, 3.0]),
            "moment": random.choice(list(Moment)),
        }


def _of_the_ranker(random: Random, steps: int, step_s: float) -> dict[str, Any]:
    kind, at_step = random.choice([BreakKind.KILL, BreakKind.KILL, BreakKind.HANG]), random.randint(0, steps - 1)
    after_s = round(random.random() * step_s, 3)
    return {"kind": kind, "role": "ranker", "member": "0", "at_step": at_step, "after_s": after_s}


def _of_a_joiner(random: Random, replicas: int, steps: int, step_s: float) -> dict[str, Any]:
    """Of the first replica beyond those of the start, if there is one by then."""
    kind = random.choice([BreakKind.KILL, BreakKind.KILL, BreakKind.HANG])
    at_step, after_s = random.randint(1, steps - 1), round(random.random() * step_s, 3)
    return {"kind": kind, "role": "replica", "member": f"r{replicas}", "at_step": at_step, "after_s": after_s}


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
    if kind is BreakKind.KILL:
        fault |= random.choice([replica, replica, replica, trainer, trainer, relay, relay, relay, scorer, data])
    elif kind is BreakKind.HANG:
        fault |= random.choice([replica, replica, trainer, relay, scorer, data])
    elif kind in (BreakKind.SLOW, BreakKind.PARTITION):
        fault |= random.choice([replica, replica, trainer])
    elif kind in (BreakKind.TORN_PULL, BreakKind.STALL):
        fault |= replica
    if kind is BreakKind.SLOW:
        fault |= {"speed": random.choice([0.1, 0.5]), "for_s": random.choice([1.0, 10.0])}
    elif kind is BreakKind.PARTITION:
        fault["for_s"] = round(delays["hang_s"] * random.choice([0.1, 0.4, 0.9, 2.0]), 3)
    elif kind is BreakKind.TORN_PULL:
        fault["count"] = random.choice([1, 1, 2, 3])
    elif kind is BreakKind.BROKEN_SCORING:
        fault["for_s"] = random.choice([0.5, 3.0])
    return fault
