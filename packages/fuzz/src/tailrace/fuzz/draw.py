"""A random case from a seed: a pipeline, a small fleet, and what breaks on it."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

from tailrace.contracts import BatchingPolicy, Progress, plugins
from tailrace.fuzz.case import Case
from tailrace.fuzz.errors import CaseError
from tailrace.fuzz.faults import (
    SILENT,
    at_a_loan,
    attaches,
    fault_of_a_case,
    how_many,
    in_a_step,
    machines,
    of_a_joiner,
    of_an_environment,
    of_the_ranker,
    restarts_twice,
    standbys,
    stuck_checkpoints,
    wrong_loads,
)
from tailrace.fuzz.policies import (
    APART,
    NEWER,
    NONE,
    POLICIES,
    SHARE_OF_NEWER,
    SMALL,
    Policies,
    admits_rounds,
    as_it_is,
    draw_newer,
    draw_options,
    draw_policy,
    launches_rounds,
    lends_devices,
    make_policy,
    streams_parts,
    takes,
    yields_devices,
)
from tailrace.pipeline.config.models import Choice

PLANS_WITH_PREDICTIONS = (("routing", "predicted"), ("relocation", "projected"))
"""Axes, and the options with which their policies plan with predicted lengths."""
ADMIT_ROUNDS = ("on-policy", "one-step")
WATCH_ROUNDS = ("adaptive-tp", "scale-down", "adaptive-tp-scale-down")
WATCH_ITERATIONS = ("balanced",)
YIELD = ("hybrid",)
SHARE_OF_HURRY = 0.06
RESTARTS_IN_VAIN = {
    "isolate": ("max_restarts", "trainer_restarts", "data_restarts"),
    "role-based": ("max_restarts", "max_task_restarts"),
    "restart-task": ("max_task_restarts",),
}
"""What ends a run in which everything that is started again fails as before."""


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
    rounds = launches_rounds(Choice(**pipeline["batching"]), policies)
    if rounds:
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
    pipeline |= draw_newer(Random(f"tailrace fuzz {seed}, newer samplers"), "sampler", policies)
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
    faults = (fault_of_a_case(random, counts, pipeline["steps"], step_s, delays) for _ in range(how_many(random)))
    content["faults"] = tuple(faults)
    refusals = Random(f"tailrace fuzz {seed}, refusals")  # as with newer policies
    content["refusals"] = refusals.choice([0.0, 0.0, 0.0, 0.0, 0.0, 0.05, 0.3])
    if pipeline["routing"]["name"] in NEWER["routing"]:
        content["predictions"] = Random(f"tailrace fuzz {seed}, predictions").choice([0.0, 0.4, 1.0, 1.0])
    _plan_with_predictions(Random(f"tailrace fuzz {seed}, plans with predictions"), content, policies)
    if content.get("predictions"):
        ranker = Random(f"tailrace fuzz {seed}, what breaks the ranker")
        many = ranker.choice([0, 0, 1, 3])
        content["faults"] += tuple([of_the_ranker(ranker, pipeline["steps"], step_s) for _ in range(many)])
    content["far"] = Random(f"tailrace fuzz {seed}, sites").choice([0, 0, 0, 1, 2])
    if balances:
        content["far"] = 0  # it plans for replicas that are all alike
        joiner = Random(f"tailrace fuzz {seed}, what breaks a joiner")
        content["faults"] += tuple(
            [
                of_a_joiner(joiner, content["replicas"], pipeline["steps"], step_s)
                for _ in range(joiner.choice([0, 1, 2]))
            ]
        )
    environments = Random(f"tailrace fuzz {seed}, environments")
    content["environments"] = _environments(environments)
    if "environment" in content["workload"]:
        many = environments.choice([0, 1, 1, 3])
        content["faults"] += tuple(
            [
                of_an_environment(environments, content["environments"]["members"], pipeline["steps"], step_s)
                for _ in range(many)
            ]
        )
    content["faults"] += tuple(attaches(Random(f"tailrace fuzz {seed}, controllers"), pipeline["steps"], step_s))
    content["faults"] += in_a_step(Random(f"tailrace fuzz {seed}, phases"), pipeline)
    fenced = Random(f"tailrace fuzz {seed}, a fence").random() < SHARE_OF_NEWER
    partly = Random(f"tailrace fuzz {seed}, checkpoints of weights")
    content["full_checkpoint_every"] = partly.choice([1, 1, 1, 2, 3, 5])
    content["fence"] = fenced and content["checkpoint_every"] * content["full_checkpoint_every"] == 1
    takes = Random(f"tailrace fuzz {seed}, newer weights").random() < SHARE_OF_NEWER
    content["newer_weights"] = takes and not content["fence"]
    content["peers"] = Random(f"tailrace fuzz {seed}, peers").random() < SHARE_OF_NEWER
    content["replica_versions"] = Random(f"tailrace fuzz {seed}, versions").choice([1, 1, 1, 2, 3])
    content["cells"] = Random(f"tailrace fuzz {seed}, cells").choice([1, 1, 2, 2, 3])
    if lends:
        content |= {"colocated": True, "cells": 2, "replicas": content["replicas"] + content["replicas"] % 2, "far": 0}
        content["judge_cell"] = Random(f"tailrace fuzz {seed}, a judge").choice([None, None, 0, 1])
    if yields:
        content |= _hybrids(hybrids, content["replicas"])
    if lends or yields:
        loans = Random(f"tailrace fuzz {seed}, loans")
        content["faults"] += at_a_loan(loans, content["replicas"], pipeline["steps"])
    content |= machines(Random(f"tailrace fuzz {seed}, machines"), content, step_s)
    pipeline |= draw_newer(Random(f"tailrace fuzz {seed}, recovery"), "recovery", policies)
    standbys(Random(f"tailrace fuzz {seed}, standbys"), content, policies)
    detection = Random(f"tailrace fuzz {seed}, detection")
    pipeline |= draw_newer(detection, "detection", policies)
    if "detection" in policies:
        pipeline["detection"] = draw_policy(detection, "detection", policies)
    content["faults"] += stuck_checkpoints(Random(f"tailrace fuzz {seed}, stuck checkpoints"), pipeline["steps"])
    loads = Random(f"tailrace fuzz {seed}, wrong loads")
    content["faults"] += wrong_loads(loads, content["replicas"], pipeline["steps"])
    silent = Random(f"tailrace fuzz {seed}, what nobody hears of")
    content["unscored"] = silent.choice([0.01, 0.05]) if silent.random() < SILENT else 0.0
    content["drops_s"] = silent.choice([0.5, 2.0]) if silent.random() < SILENT else 0.0
    if content["unscored"] and pipeline.get("detection", {}).get("name", "role-aware") != "role-aware":
        # each such score restarts the trainer, before it has made more steps
        content |= {"checkpoint_every": 1, "full_checkpoint_every": 1}
    if "recovery" not in policies:
        restarts_twice(Random(f"tailrace fuzz {seed}, a task that restarts twice"), content)
    hurry = Random(f"tailrace fuzz {seed}, deadlines")
    if hurry.random() < SHARE_OF_HURRY and not {"detection", "recovery"} & set(policies):
        _hurries(hurry, content)
    if not rounds and pipeline["sync"]["name"] != "barrier":
        pipeline |= _eviction(Random(f"tailrace fuzz {seed}, eviction"), pipeline["prompts_per_step"])
    return Case.model_validate(content)


def _eviction(random: Random, batch: int) -> dict[str, Any]:
    """Some cases have complete groups that hold no replica back: those beyond the buffer leave untrained.

    Under a barrier replicas would never be idle all together, which it waits for.
    """
    if random.random() >= SHARE_OF_NEWER:
        return {}
    name = random.choice(sorted(plugins.names("tailrace.eviction")))
    return {"eviction": {"name": name}, "buffer_prompts": batch + random.randint(0, batch)}


def _hurries(random: Random, content: dict[str, Any]) -> None:
    """Steps take longer than their deadline or a window of detection: the run gives up, or what is done in time is enough."""
    pipeline = content["pipeline"]
    limits = {name: random.choice([0, 1, 2]) for name in RESTARTS_IN_VAIN[pipeline["recovery"]["name"]]}
    pipeline["recovery"] = {**pipeline["recovery"], **limits, "window_s": random.choice([0.2, 4.0, 600.0])}
    window_s = random.choice([0.3, 2.0, 8.0])
    match random.choice(["deadline", "deadline", "role-aware", "rank-level", "cluster-level"]):
        case "deadline":
            content["step_s"] = window_s
        case "role-aware":
            pipeline["detection"] = {"name": "role-aware", "phase_s": {"training": window_s}, "slow_factor": 0.0}
        case name:
            pipeline["detection"] = {"name": name, "device_s": window_s}


def _hybrids(random: Random, replicas: int) -> dict[str, Any]:
    """Replicas of which some, or all, stand on the trainer's devices."""
    replicas = random.choice([replicas, max(2, replicas)])
    cells = random.choice([1, 1, 2])
    hybrids = 0 if random.random() < 0.4 else random.randint(1, replicas)
    each = (hybrids or replicas) % cells == 0  # as many stand on the devices of each cell
    return {"colocated": True, "cells": cells if each else 1, "replicas": replicas, "hybrids": hybrids, "far": 0}


def _plan_with_predictions(random: Random, content: dict[str, Any], policies: Policies) -> None:
    """Let the policies that can plan with predicted lengths do so in some cases, and add a ranker there."""
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
    facts = replace(SMALL, surplus_groups=surplus)
    while make_policy("admission", Choice(**drawn["admission"]), facts, policies).surplus_groups < surplus:
        # That admission makes no room for surplus groups.
        if mine is None:
            surplus = 0
            del drawn["batching"]["surplus_groups"]
        elif "admission" in policies:
            raise CaseError(
                f"found {surplus} surplus groups of a batching policy, expected an admission with room for them"
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


def _environments(random: Random) -> dict[str, Any]:
    return {
        "members": random.choice([1, 1, 2, 3]),
        "sessions": random.choice([None, None, 1, 2, 8]),
        "breaks": random.choice([0.0, 0.0, 0.02, 0.1]),
        "lost": random.choice([0.0, 0.0, 0.5, 1.0]),
        "unanswered": random.choice([0.0, 0.0, 0.0, 0.01]),
        "ends": random.choice([0.0, 0.5, 1.0]),
    }
