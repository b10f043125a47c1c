"""A case on the local executor: its pipeline and its kills and hangs as a command line of ``tailrace run``.

What only the simulator can do (partitions, torn pulls, lost checkpoints, deaths of the controller) has no counterpart there.
Faults strike at the step after which they struck in the case, since the two clocks have nothing to do with each other.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from tailrace.fuzz.case import SITE, Case
from tailrace.fuzz.faults import CaseFault
from tailrace.fuzz.policies import POLICIES

APP = "laminar"
_OWN = {"replica_versions", "scoring_attempts", "environments", "machines", "judge_cell"}


def run_arguments(case: Case) -> list[str]:
    """The words of the command, after ``tailrace``."""
    words = ["run", APP, "--executor", "local", "--seed", str(case.seed)]
    for setting in settings(case):
        words += ["--set", setting]
    for fault in case.faults:
        scripted = fault.scripted()
        if scripted is not None:
            words += [f"--{scripted.kind}", str(scripted).removeprefix(f"{scripted.kind}:")]
    return words


def run_command(case: Case) -> str:
    """The command, for a shell."""
    return shlex.join(["tailrace", *run_arguments(case)])


def left_out(case: Case) -> list[CaseFault]:
    """Faults that a real run cannot be told to have."""
    return [fault for fault in case.faults if fault.scripted() is None]


def settings_left_out(case: Case) -> dict[str, Any]:
    """Settings of a case that differ from the defaults and that the command leaves out: a run has its own, or none."""
    without = set() if case.workload.environment else {"environments"}
    return case.model_dump(mode="json", include=_OWN - without, exclude_defaults=True)


def settings(case: Case) -> list[str]:
    """The pipeline of a case as settings over an app's quick start."""
    pipeline = case.pipeline
    found = {f"pipeline.{axis}": getattr(pipeline, axis).model_dump() for axis in POLICIES}
    surplus = pipeline.batching.options.get("surplus_groups", 0)
    values: dict[str, Any] = {
        **found,
        "pipeline.steps": pipeline.steps,
        "pipeline.prompts_per_step": pipeline.prompts_per_step,
        "pipeline.samples_per_prompt": pipeline.samples_per_prompt,
        "pipeline.prompts_per_replica": pipeline.prompts_per_replica,
        "pipeline.cycle_s": pipeline.cycle_s,
        # A quick start limits what is open, and no setting takes that back: what no limit would come to stands for none.
        "pipeline.buffer_prompts": pipeline.buffer_prompts or 4 * (pipeline.prompts_per_step + surplus),
        "rollout.replicas": case.replicas,
        "rollout.max_tokens": case.max_tokens,
        **_sites(case),
        "rollout.cost_model": {name: getattr(case.costs, name) for name in ("k1", "k2", "k3", "k4")},
        "trainer": _shared(case),
        "checkpoint.every": case.checkpoint_every,
        "checkpoint.full_every": case.full_checkpoint_every,
        "checkpoint.newer_weights": case.newer_weights,
        "publish.fence": case.fence,
        "evaluation.every": case.evaluation.every,
    }
    if pipeline.eviction is not None:  # a quick start has none
        values["pipeline.eviction"] = pipeline.eviction.model_dump()
    if case.predictions:
        values["ranker.method"] = "lexical"
    return [f"{key}={_toml(value)}" for key, value in _leaves("", values)]


def _sites(case: Case) -> dict[str, Any]:
    """The relays and, where replicas are not all alike, their pools."""
    far = sum(map(bool, case.relay_sites))
    found: dict[str, Any] = {"relay.count": case.relays - far}
    if case.peers:
        found["relay.mode"] = "peer"
    if case.pools:
        samples = case.pipeline.samples_per_prompt
        if any(pool.site for pool in case.pools):
            found["relay.sites"] = {SITE: max(1, far)}  # a real pool's site has a relay
        found["rollout.pools"] = [
            {"name": pool.name, "count": pool.count, "prompts_per_replica": pool.replica_batch // samples}
            | ({"site": pool.site} if pool.site else {})
            | ({"hybrid": True} if pool.hybrid else {})
            for pool in case.pools
        ]
    return found


def _shared(case: Case) -> dict[str, Any]:
    """The trainer's cells where they share devices with replicas: one process each."""
    if not case.colocated:
        return {}
    return {"processes": case.cells, "cells": case.cells, "colocated": True}


def _toml(value: Any) -> str:
    """A value as TOML: JSON is, but for tables in a list."""
    if isinstance(value, list):
        return f"[{', '.join(_toml(one) for one in value)}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {_toml(one)}" for key, one in value.items()) + "}"
    return json.dumps(value)


def _leaves(prefix: str, values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Dotted keys with what is no table."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _leaves(f"{prefix}{key}.", value)
        else:
            yield f"{prefix}{key}", value
