"""Builds a fleet from a configuration. An impossible fleet is refused, with the numbers in conflict and what would fit."""

from __future__ import annotations

import dataclasses
import inspect
import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from tailrace.fleetsim.config import FleetConfig, Goal, RolloutFleet, fleet_config
from tailrace.fleetsim.cost import TENSOR_S, DecodeCost, PrefillCost, TrainingCost, WeightCost
from tailrace.fleetsim.errors import FleetError
from tailrace.fleetsim.fleet import SimulatedFleet, WeightCosts
from tailrace.fleetsim.hardware import Device, ModelShape, find_device, model
from tailrace.fleetsim.prices import price_per_hour
from tailrace.fleetsim.profile.fleet import profiled_fleet
from tailrace.fleetsim.quantities import failures, needed, parts, samples, scoring_pools, warm_up
from tailrace.fleetsim.replica_sizes import best_size
from tailrace.fleetsim.workload.config import WorkloadConfig
from tailrace.fleetsim.workload.workload import Workload
from tailrace.pipeline.config.models import Choice, CostModelConfig, RunConfig
from tailrace.pipeline.config.policies import load_policy
from tailrace.pipeline.run.build import build_spec
from tailrace.pipeline.run.scripted_faults import build_faults

BEYOND = 1_000  # batches that a steady run would still have before it; it stops long before


def build_fleet(config: RunConfig, *, seed: int = 0) -> SimulatedFleet:
    """The fleet that a configuration describes.

    Raises:
        ConfigError, FleetsimError: one line that says which numbers clash, and what would fit.
    """
    table = fleet_config(config.fleet)
    if table.profile is not None and table.model is None:
        return profiled_fleet(config, table, seed=seed)
    split = _split(table)
    decode = DecodeCost.of(split.model, split.rollout, table.rollout.tensor_parallel)
    _check_lengths(config, split, decode, table.rollout.tensor_parallel)
    training = TrainingCost.of(
        split.model,
        split.trainer,
        split.trainer_gpus,
        mfu=table.trainer.mfu,
        passes=table.trainer.passes,
        optimizer_s=table.trainer.optimizer_s,
        tensor_parallel=table.trainer.tensor_parallel,
        pipeline_parallel=table.trainer.pipeline_parallel,
        context_parallel=table.trainer.context_parallel,
        layer_s=table.trainer.layer_s,
    )
    sized = _sized(config, table, split)
    workload = (table.workload or WorkloadConfig()).build(seed, config.rollout.max_tokens)
    prefill = PrefillCost.of(split.model, split.rollout, table.rollout.tensor_parallel)
    own: dict[int, tuple[DecodeCost, PrefillCost]] = {table.rollout.tensor_parallel: (decode, prefill)}
    config = _completed(config, table, decode, split, workload, own | sized)
    spec = build_spec(config)
    spec = dataclasses.replace(spec, colocated=spec.colocated or split.colocated)
    warm = warm_up(table, spec)
    batches = spec.steps
    if table.steady is not False:
        spec = dataclasses.replace(spec, steps=spec.steps + BEYOND)
    return SimulatedFleet(
        spec=spec,
        workload=workload,
        decode=decode,
        prefill=prefill,
        training=training,
        weights=_weights(table, split),
        rollout=table.rollout,
        delays=table.delays,
        samples=samples(spec),
        needed=needed(spec),
        parts=parts(spec),
        data_s=table.trainer.data_s,
        gpus=split.gpus,
        devices=split.counts,
        price_per_hour=price_per_hour(split.counts, table.prices, split.kinds),
        goal=table.goal or Goal(steps=batches),
        warm_up=warm,
        batches=batches,
        slow=_slow_replicas(table, split.replicas, seed),
        failures=failures(table, table.rollout.tensor_parallel, split.trainer_gpus, seed),
        scoring=scoring_pools(table, config.reward),
        relays=config.relay.count,
        faults=tuple(build_faults(config)),
        description=split.describe(table),
        config=config,
        tp=table.rollout.tensor_parallel,
        sized=sized,
    )


@dataclass(frozen=True, slots=True)
class _Split:
    """Which devices do what."""

    model: ModelShape
    rollout: Device
    trainer: Device
    rollout_gpus: int
    trainer_gpus: int
    replicas: int
    colocated: bool

    @property
    def gpus(self) -> int:
        return self.rollout_gpus if self.colocated else self.rollout_gpus + self.trainer_gpus

    @property
    def kinds(self) -> dict[str, Device]:
        return {self.trainer.name: self.trainer, self.rollout.name: self.rollout}

    @property
    def counts(self) -> dict[str, int]:
        counts = dict.fromkeys(self.kinds, 0)
        counts[self.rollout.name] += self.rollout_gpus
        if not self.colocated:
            counts[self.trainer.name] += self.trainer_gpus
        return counts

    def describe(self, table: FleetConfig) -> str:
        parallel = table.rollout.tensor_parallel
        replicas = f"{self.replicas} replicas of {parallel}" if parallel > 1 else f"{self.replicas} replicas"
        if self.colocated:
            return f"{self.model.name} on {self.gpus} x {self.rollout.name}, trainer and {replicas} in turn"
        return (
            f"{self.model.name}: {self.trainer_gpus} x {self.trainer.name} train, "
            f"{self.rollout_gpus} x {self.rollout.name} generate ({replicas})"
        )


def _split(table: FleetConfig) -> _Split:
    if table.model is None:
        raise FleetError(
            "table 'fleet': found neither 'model' nor 'profile', expected a model and devices to simulate, such as "
            'fleet.model="Qwen2.5-32B", or a machine that `tailrace profile` has measured'
        )
    rollout, trainer, colocated = table.rollout, table.trainer, table.placement == "colocated"
    if rollout.gpus is None:
        raise FleetError("table 'fleet': found no 'rollout.gpus', expected the devices that generate: at least 1")
    if trainer.gpus is None and not colocated:
        raise FleetError(
            "table 'fleet': found no 'trainer.gpus', expected the devices that train: at least 1, or "
            'fleet.placement="colocated", where both use all devices in turn'
        )
    if colocated and trainer.gpus not in (None, rollout.gpus):
        raise FleetError(
            f"table 'fleet': found trainer.gpus = {trainer.gpus} and rollout.gpus = {rollout.gpus} colocated, expected the "
            "same devices: leave trainer.gpus out"
        )
    if colocated and table.cross_datacenter:
        raise FleetError(
            "table 'fleet': found placement = 'colocated' and cross_datacenter = true, expected one of them"
        )
    if table.cross_datacenter and table.weights == "global":
        raise FleetError(
            "table 'fleet': found weights = 'global' and cross_datacenter = true: a collective over devices cannot cross "
            "datacenters; expected weights = 'relays' or 'store'"
        )
    replicas, over = divmod(rollout.gpus, rollout.tensor_parallel)
    if over or not replicas:
        lower = replicas * rollout.tensor_parallel
        fitting = f"{lower} or {lower + rollout.tensor_parallel}" if lower else str(rollout.tensor_parallel)
        raise FleetError(
            f"table 'fleet': found rollout.gpus = {rollout.gpus} for replicas of rollout.tensor_parallel = "
            f"{rollout.tensor_parallel}, expected a multiple: {fitting}"
        )
    return _Split(
        model=model(table.model),
        rollout=_tuned(find_device(rollout.device), rollout),
        trainer=find_device(rollout.device if colocated else trainer.device),
        rollout_gpus=rollout.gpus,
        trainer_gpus=rollout.gpus if colocated or trainer.gpus is None else trainer.gpus,
        replicas=replicas,
        colocated=colocated,
    )


def _tuned(kind: Device, table: RolloutFleet) -> Device:
    """The device with what a configuration says of its engine."""
    share = kind.prefill_flops / kind.peak_flops if table.prefill_mfu is None else table.prefill_mfu
    return replace(
        kind,
        cpu_s=kind.cpu_s + table.step_s,
        prefill_flops=share * kind.peak_flops,
        memory_share=kind.memory_share if table.memory_share is None else table.memory_share,
    )


def _check_lengths(config: RunConfig, split: _Split, decode: DecodeCost, tensor_parallel: int) -> None:
    if config.rollout.max_tokens > decode.kv_capacity_tokens:
        raise FleetError(
            f"found rollout.max_tokens = {config.rollout.max_tokens}, but the KV cache of a replica of {split.model.name} on "
            f"{tensor_parallel} x {split.rollout.name} holds {decode.kv_capacity_tokens} tokens; expected at most that, or "
            "more devices for a replica"
        )


def _sized(config: RunConfig, table: FleetConfig, split: _Split) -> dict[int, tuple[DecodeCost, PrefillCost]]:
    """The costs of replicas of other sizes: powers of two of devices of one machine that hold a whole response."""
    sized: dict[int, tuple[DecodeCost, PrefillCost]] = {}
    sizes = [2**power for power in range(split.rollout.gpus_per_node.bit_length())]
    for size in sizes:
        if size == table.rollout.tensor_parallel or size > min(split.rollout.gpus_per_node, split.rollout_gpus):
            continue
        try:
            decode = DecodeCost.of(split.model, split.rollout, size)
            if decode.kv_capacity_tokens >= config.rollout.max_tokens:
                sized[size] = decode, PrefillCost.of(split.model, split.rollout, size)
        except FleetError:  # such a replica cannot be
            continue
    return sized


def _completed(
    config: RunConfig,
    table: FleetConfig,
    decode: DecodeCost,
    split: _Split,
    workload: Workload,
    costs: Mapping[int, tuple[DecodeCost, PrefillCost]],
) -> RunConfig:
    """Settings that follow from the fleet: the number of replicas, and the cost model that `tailrace fit-cost` would find."""
    rollout: dict[str, Any] = {"replicas": split.replicas}
    pipeline: dict[str, Choice] = {}
    if table.rollout.tensor_parallel > 1:
        rollout["options"] = {**config.rollout.options, "tensor_parallel_size": table.rollout.tensor_parallel}
    provisioning = config.pipeline.provisioning
    takes = inspect.signature(load_policy("provisioning", provisioning.name)).parameters
    if "devices_per_machine" in takes:
        known = {"heads": split.model.query_heads, "devices_per_machine": max(costs), "smallest": min(costs)}
        if {"short", "long"} - set(provisioning.options):
            groups, samples = config.pipeline.prompts_per_step, config.pipeline.samples_per_prompt
            devices = split.rollout_gpus
            best = best_size(costs, workload, table.rollout, devices=devices, groups=groups, samples=samples)
            known |= {"short": best, "long": best}
        pipeline["provisioning"] = Choice(name=provisioning.name, **{**known, **provisioning.options})
    if table.fit_cost:
        fitted = decode.coefficients()
        cost = CostModelConfig(k1=fitted.k1, k2=fitted.k2, k3=fitted.k3, k4=fitted.k4)
        relocation = config.pipeline.relocation
        takes = inspect.signature(load_policy("relocation", relocation.name)).parameters
        if "roofline_batch" in takes and "roofline_batch" not in relocation.options:
            options = {**relocation.options, "roofline_batch": max(1, decode.roofline_batch)}
            pipeline["relocation"] = Choice(name=relocation.name, **options)
        rollout["cost_model"] = cost
    return config.model_copy(
        update={
            "rollout": config.rollout.model_copy(update=rollout),
            "pipeline": config.pipeline.model_copy(update=pipeline),
        }
    )


def _weights(table: FleetConfig, split: _Split) -> WeightCosts:
    tensor_s = TENSOR_S if table.weights == "store" else 0.0  # its engines take tensor by tensor
    cost = WeightCost.of(split.model, split.rollout, table.rollout.tensor_parallel, tensor_s=tensor_s)
    nodes = max(1, -(-split.rollout_gpus // split.rollout.gpus_per_node))
    if split.colocated:
        return WeightCosts(
            stall_s=0.0, broadcast_s=0.0, pull_s=cost.reshard_s(min(split.gpus, split.rollout.gpus_per_node))
        )
    if table.weights == "global":
        takes_s = cost.global_sync_s(split.trainer_gpus, split.rollout_gpus)
        return WeightCosts(stall_s=takes_s, broadcast_s=0.0, pull_s=takes_s)
    far_s = cost.cross_datacenter_s() if table.cross_datacenter else 0.0
    if table.weights == "store":
        return WeightCosts(stall_s=cost.peer_s(), broadcast_s=far_s, pull_s=cost.pull_s())
    return WeightCosts(stall_s=cost.push_s(), broadcast_s=far_s + cost.broadcast_s(nodes), pull_s=cost.pull_s())


def _slow_replicas(table: FleetConfig, replicas: int, seed: int) -> dict[str, float]:
    numbers = random.Random(f"slow {seed}")
    count = round(table.failures.slow_share * replicas)
    return {f"r{index}": table.failures.slow_speed for index in sorted(numbers.sample(range(replicas), count))}
