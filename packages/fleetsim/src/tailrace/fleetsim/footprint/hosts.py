"""The memory, shared memory and disk of each host, by owner. Each owner's arithmetic is a function of its own."""

from __future__ import annotations

import math
from collections.abc import Iterator

from tailrace.fleetsim.footprint.machines import Machines
from tailrace.fleetsim.footprint.memory import (
    MemoryPlace,
    OwnedBytes,
    longest_tokens,
    options_of,
    rank_parts,
    state_bytes,
    weight_bytes,
)
from tailrace.fleetsim.footprint.model import RunModel
from tailrace.fleetsim.footprint.placement import Standing, StandingMember
from tailrace.pipeline.config.models import RunConfig
from tailrace.pipeline.roles.weights import SLOTS
from tailrace.pipeline.run.build import trainer_config
from tailrace.pipeline.run.checkpoint_plan import CheckpointPlan, plan_checkpoints
from tailrace.pipeline.run.device_shares import takes_cores
from tailrace.pipeline.run.engine_abilities import sleep_level
from tailrace.pipeline.run.machines import PEER
from tailrace.pipeline.run.pools import offers_weights, relay_count, relay_slots
from tailrace.rollout import EngineOptions, select_engine
from tailrace.rollout.options import CacheShape, resolve_dtype
from tailrace.runtime.executor.deployment import TRAINER
from tailrace.trainer.memory import DTYPE_BYTES

SHARED = "/dev/shm"  # noqa: S108 - where Linux has it
PROCESS_BYTES = {
    "members": 550e6,
    "watcher": 56e6,
    "controller": 440e6,
    "ray": 450e6,
    "data": 115e6,
    "role": 75e6,
    "trainer": 470e6,
    "replica vllm": 800e6,
    "replica transformers": 460e6,
    "replica sglang": 2_600e6,
    "relay": 26e6,
    "verifier": 98e6,
    "ranker": 470e6,
    "environment": 100e6,
}
"""Bytes of each process with what it imports, before it loads anything; no pages of files, which processes share.

Measured on the local host and on Ray (tools/bench/run_memory.py), but for vLLM's, SGLang's (with its server's three processes),
the ranker's and environments': inferred.
"""
CPU_ENGINES = {"vllm": (128, 256), "sglang": (1, 256), "transformers": (32, 32)}
"""Tokens of a block of the KV cache and most requests of a batch, by engine, on a CPU where no option says them."""
SAVED_STATE_BYTES = 12
"""Bytes of a checkpoint for each parameter: itself and two moments in float32. Weights in the trainer's dtype come beside."""
ENGINE_PART_BYTES = 256 * 2**20
"""Bytes of a version, at one time, in shared memory for the workers of an engine over several devices."""
TOKEN_BYTES = {"fetched": 8, "archive": 8, "store": 40}
"""Bytes of a token: in a rank's arrays, in the archive, in the store (docs/operating.md, tools/bench/trajstore.py)."""


def host_places(config: RunConfig, machines: Machines, standing: Standing, model: RunModel) -> list[MemoryPlace]:
    """Memory and shared memory of each host, and the disk of the run directory."""
    found = []
    for node in range(machines.nodes):
        site = machines.at(node)
        named = "" if machines.nodes == 1 else f" of machine {node}{f' ({site.site})' if site.site else ''}"
        shared = shared_parts(config, machines, standing, model, node)
        parts = [*_members(config, machines, standing, model, node), *shared]
        capacity = None if site.device is None else site.device.host_memory_bytes
        keys = "'rollout.replicas', 'trainer.processes' and 'relay.count'"
        found.append(MemoryPlace(f"host memory{named}", tuple(parts), capacity, keys))
        found.append(
            MemoryPlace(f"{SHARED}{named}", tuple(shared), None, "'relay.count'", "the container's --shm-size higher")
        )
    found.append(MemoryPlace("disk of the run directory", tuple(disk_parts(config, model)), None, "'checkpoint.keep'"))
    if plan := checkpoint_plan(config, model) if config.checkpoint.keep_gb else None:
        least = OwnedBytes("trainer", "the newest checkpoints with full state, which stay", plan.least_bytes)
        limit = f"checkpoint.keep_gb = {math.ceil(plan.least_bytes / 1e9)}"
        found.append(MemoryPlace("checkpoint.keep_gb", (least,), plan.limit_bytes, "'checkpoint.keep_gb'", limit))
    return found


def relays_on(config: RunConfig, machines: Machines, node: int) -> int:
    """Relays of a machine: those of a site are spread over its machines."""
    if machines.device is None:
        return relay_count(config)
    site = machines.at(node).site
    here, count = machines.nodes_at(site), config.relay.sites.get(site, 0) if site else config.relay.count
    return count // len(here) + (node - here.start < count % len(here))


def weights_bytes(config: RunConfig, model: RunModel) -> float:
    """Bytes of the weights in the trainer's dtype. An adapter's few count as none."""
    return 0 if config.trainer.adapter.rank else DTYPE_BYTES[trainer_config(config).dtype] * model.parameters


def published_bytes(config: RunConfig, model: RunModel) -> float:
    """Bytes of a version as it is published."""
    each = DTYPE_BYTES[trainer_config(config).dtype]
    return weights_bytes(config, model) / each * {"bf16": min(each, 2), "fp8": 1}.get(config.relay.codec, each)


def shared_parts(
    config: RunConfig, machines: Machines, standing: Standing, model: RunModel, node: int
) -> list[OwnedBytes]:
    """What lies in a machine's shared memory: versions in relays, one more that is staged there, parts for engines."""
    relays, version = relays_on(config, machines, node), published_bytes(config, model)
    held = min(relay_slots(config), config.pipeline.steps + 1)
    parts = [OwnedBytes("relays", f"{held} versions in each of {relays}", relays * held * version)] if relays else []
    if relays and node == 0 and config.relay.transport == "shm":
        parts.append(OwnedBytes("relays", "a version that is being published", version))
    here = [one for one in standing.on(node) if one.role != TRAINER]
    if here and offers_weights(config):
        each = min(SLOTS, config.pipeline.steps + 1)
        parts.append(
            OwnedBytes("replicas", f"{each} versions to offer in each of {len(here)}", len(here) * each * version)
        )
    if PEER in config.checkpoint.domains and relays:
        parts.append(OwnedBytes("relays", "checkpoints of another machine", 2 * checkpoint_bytes(config, model)))
    spread = [one for one in here if options_of(config, one).tensor_parallel_size > 1]
    if spread:
        parts.append(OwnedBytes("replicas", "part of a version for their workers", len(spread) * ENGINE_PART_BYTES))
    return parts


def checkpoint_bytes(config: RunConfig, model: RunModel) -> float:
    """Bytes of a checkpoint: the state and, in the trainer's dtype, the weights."""
    return SAVED_STATE_BYTES * trained_parameters(config, model) + weights_bytes(config, model)


def trained_parameters(config: RunConfig, model: RunModel) -> int:
    """Parameters with moments: the policy's and the critic's. An adapter is thousands of times smaller than its model."""
    policy = 0 if config.trainer.adapter.rank else model.parameters
    if not trainer_config(config).has_critic:
        return policy
    return policy + (model.parameters if model.dense is None else model.dense.critic_parameters)


def checkpoint_plan(config: RunConfig, model: RunModel) -> CheckpointPlan:
    """The checkpoints of a run."""
    full, weights = checkpoint_bytes(config, model), weights_bytes(config, model)
    return plan_checkpoints(config.checkpoint, config.pipeline.steps, int(full), int(weights))


def disk_parts(config: RunConfig, model: RunModel) -> list[OwnedBytes]:
    """What a run leaves on its disk."""
    pipeline = config.pipeline
    plan = checkpoint_plan(config, model)
    weights = f" and {plan.weights} of weights" if plan.weights else ""
    batch = pipeline.prompts_per_step * pipeline.samples_per_prompt * config.rollout.max_tokens
    return [
        OwnedBytes("trainer", f"{plan.full} checkpoints with full state{weights}", plan.kept_bytes),
        OwnedBytes("trainer", "2 that are being written", plan.writing_bytes),
        OwnedBytes("data", "store, if all responses are longest", 2 * batch * TOKEN_BYTES["store"], at_most=True),
        OwnedBytes(
            "data",
            "archive, if all responses are longest",
            pipeline.steps * batch * TOKEN_BYTES["archive"],
            at_most=True,
        ),
    ]


def checkpoint_copy_bytes(config: RunConfig, model: RunModel) -> float:
    """Bytes of one copy of a rank's state in host memory."""
    table = config.trainer
    return SAVED_STATE_BYTES * trained_parameters(config, model) / (table.processes // table.cells)


def _members(
    config: RunConfig, machines: Machines, standing: Standing, model: RunModel, node: int
) -> Iterator[OwnedBytes]:
    """The processes of a machine, and what each has in the host's memory."""
    here = standing.on(node)
    yield from _processes(config, machines, here, node)
    if ranks := [member for member in here if member.role == TRAINER]:
        yield from _ranks(config, model, ranks)
    pools: dict[int | None, list[StandingMember]] = {}
    on_cores = takes_cores(config)
    for member in here:
        if member.role != TRAINER and model.shape is not None and (on_cores or not member.devices):
            pools.setdefault(member.pool, []).append(member)
    sleeping = [one for one in here if one.role != TRAINER and one.devices and not on_cores]  # else they are in `pools`
    if sleeping and sleep_level(config, select_engine(config.rollout.engine)) == 1:
        size = sum(weight_bytes(options_of(config, one), "cuda") * model.parameters for one in sleeping)
        yield OwnedBytes("replicas", "weights, while their devices are lent", size)
    for alike in pools.values():
        options = options_of(config, alike[0])
        yield OwnedBytes("replicas", "weights", len(alike) * weight_bytes(options, "cpu") * model.parameters)
        yield OwnedBytes("replicas", "KV cache", len(alike) * kv_cache_bytes(config, options, model))
    if node == 0 and config.reward.code.memory_mib is not None and runs_programs(config):
        most = config.reward.code.workers * config.reward.code.memory_mib * 2**20
        yield OwnedBytes("scorer", "programs, if all reach their limit", most, at_most=True)


def runs_programs(config: RunConfig) -> bool:
    """Whether responses are programs that the scorer runs."""
    return "code" in {config.task.verifier, *(one.verifier for one in config.task.sources)}


def _processes(
    config: RunConfig, machines: Machines, here: tuple[StandingMember, ...], node: int
) -> Iterator[OwnedBytes]:
    """What processes have before they load anything; on the local host the members are threads of one."""
    alone, base = config.executor.name == "local", PROCESS_BYTES
    replicas = [member for member in here if member.role != TRAINER]
    engine = f"replica {select_engine(config.rollout.engine)}"
    of_replica = base.get(engine, base["replica transformers"])
    apart = 0
    for member in replicas:
        options = options_of(config, member)
        apart += options.tensor_parallel_size if options.tensor_parallel_size > 1 or options.apart else 0
    if alone:
        yield OwnedBytes("members", "their process", base["members"])
    else:
        yield OwnedBytes("Ray", "its own processes", base["ray"])
        yield OwnedBytes("trainer", "processes", (len(here) - len(replicas)) * base["trainer"])
        yield OwnedBytes("replicas", f"{len(replicas):,} processes", len(replicas) * of_replica)
    yield OwnedBytes("replicas", "workers of engines", apart * of_replica)
    if relays := relays_on(config, machines, node):
        yield OwnedBytes("relays", "processes", relays * (base["relay"] + (0 if alone else base["role"])))
    if replicas and offers_weights(config):
        yield OwnedBytes("replicas", "processes that offer weights", len(replicas) * base["relay"])
    if config.environment.name is not None and node < machines.here:
        workers = config.environment.members * (1 + config.environment.workers)
        yield OwnedBytes("environments", "processes", workers * base["environment"] / machines.here)
    if node:
        return
    yield OwnedBytes("scorer", "verifiers", config.reward.math.workers * base["verifier"])
    yield OwnedBytes("controller", "the command that watches", base["watcher"])
    if not alone:
        yield OwnedBytes("controller", "process", base["controller"])
        yield OwnedBytes("data", "process", base["data"])
        yield OwnedBytes("scorer", "process", base["role"])
        if config.ranker is not None:
            yield OwnedBytes("ranker", "process", base["ranker"])


def _ranks(config: RunConfig, model: RunModel, ranks: list[StandingMember]) -> Iterator[OwnedBytes]:
    count, on_gpu = len(ranks), bool(ranks[0].devices) and not takes_cores(config)
    if not on_gpu:
        for part in rank_parts(config, model, gpu=False)[0]:
            yield OwnedBytes("trainer", part.what, count * part.size, part.phase)
    copy = checkpoint_copy_bytes(config, model)
    yield OwnedBytes("trainer", "a copy of its state for checkpoints", count * copy)
    of_rank = published_bytes(config, model) / config.trainer.processes
    yield OwnedBytes("trainer", "weights that are staged", max(0, config.trainer.processes - 1) and count * of_rank)
    table, offload = config.trainer, trainer_config(config).offload
    moments = count * 8 * trained_parameters(config, model) / (table.processes // table.cells)
    if on_gpu and "optimizer" in offload:
        yield OwnedBytes("trainer", "moments, pinned", moments)
    if on_gpu and table.colocated and table.offloads and table.backend == "fsdp2":
        size = count * state_bytes(config, model) - (moments if "optimizer" in offload else 0)
        yield OwnedBytes("trainer", "its state, pinned, while replicas have its devices", size)
    pipeline = config.pipeline
    batch = pipeline.prompts_per_step * pipeline.samples_per_prompt * config.rollout.max_tokens
    share = batch * TOKEN_BYTES["fetched"] / config.trainer.processes
    yield OwnedBytes("trainer", "its rows of a batch, if all responses are longest", count * share, at_most=True)


def kv_cache_bytes(config: RunConfig, options: EngineOptions, model: RunModel) -> float:
    """Bytes of a replica's KV cache on a CPU, by the engines' own function."""
    assert model.shape is not None
    shape, engine = model.shape, select_engine(config.rollout.engine)
    cache = CacheShape(shape.layers, shape.kv_heads, shape.head_dim, longest_tokens(config), shape.query_heads)
    dtype = resolve_dtype(options, "cpu")
    block, batch = CPU_ENGINES.get(engine, CPU_ENGINES["transformers"])
    return cache.cpu_kv_bytes(options, dtype, options.block_tokens or block, options.max_num_seqs or batch)
