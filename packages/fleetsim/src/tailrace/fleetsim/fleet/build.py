"""Builds a fleet from a configuration. An impossible fleet is refused, with the numbers in conflict and what would fit."""

from __future__ import annotations

import contextlib
import dataclasses
import random
from collections.abc import Mapping, Sequence
from typing import Any

from tailrace.contracts import ProvisioningPolicy
from tailrace.fleetsim.cost import DecodeCost, HandOverCost, TrainingCost
from tailrace.fleetsim.cost.weights import KEEPS_WEIGHTS
from tailrace.fleetsim.errors import FleetError
from tailrace.fleetsim.fleet.config import FleetConfig, Goal, fleet_config
from tailrace.fleetsim.fleet.fleet import SimulatedFleet
from tailrace.fleetsim.fleet.generation import best_size
from tailrace.fleetsim.fleet.layout import FleetLayout, layout
from tailrace.fleetsim.fleet.pools import Costs, pool_costs, replica_pool
from tailrace.fleetsim.fleet.quantities import (
    failures,
    needed,
    parts,
    ranker,
    samples,
    scoring_pools,
    simulated_faults,
    warm_up,
    with_environments,
)
from tailrace.fleetsim.fleet.stage_times import stage_costs
from tailrace.fleetsim.hardware.devices import price_per_hour
from tailrace.fleetsim.profile.fleet import profiled_fleet
from tailrace.fleetsim.workload.config import WorkloadConfig
from tailrace.fleetsim.workload.workload import Workload
from tailrace.pipeline.config.models import Choice, RunConfig
from tailrace.pipeline.config.policies import build_policy, load_policy, options_from
from tailrace.pipeline.config.pools import CostModelConfig, PoolConfig
from tailrace.pipeline.errors import ConfigError
from tailrace.pipeline.run.build import build_spec
from tailrace.pipeline.run.facts import facts_of

BEYOND = 1_000  # batches that a steady run would still have before it; it stops long before


def build_fleet(config: RunConfig, *, seed: int = 0) -> SimulatedFleet:
    """The fleet that a configuration describes.

    Raises:
        ConfigError, FleetsimError: one line that says which numbers clash, and what would fit.
    """
    table = fleet_config(config.fleet)
    config, table = _one_silence(config, table)
    if table.profile is not None and table.model is None:
        return profiled_fleet(config, table, seed=seed)
    # what was measured on this machine says nothing of the devices that are modelled
    config = config.model_copy(update={"rollout": config.rollout.model_copy(update={"parallelism": None})})
    split = layout(table)
    costs = [pool_costs(config, split, pool) for pool in split.pools]
    training = TrainingCost.of(
        split.model,
        split.trainer,
        split.trainer_gpus,
        mfu=table.trainer.mfu,
        passes=table.trainer.passes,
        optimizer_s=table.trainer.optimizer_s,
        critic=table.trainer.critic,
        tensor_parallel=table.trainer.tensor_parallel,
        pipeline_parallel=table.trainer.pipeline_parallel,
        context_parallel=table.trainer.context_parallel,
        layer_s=table.trainer.layer_s,
    )
    workload = (table.workload or WorkloadConfig()).build(seed, config.rollout.max_tokens)
    config = _completed(config, table, split, workload, costs)
    spec = build_spec(config)
    if split.colocated and spec.provisioning.watched_iterations():
        raise FleetError(
            f"table 'fleet': found placement = 'colocated' and provisioning {config.pipeline.provisioning.name!r}, which "
            "compares the times of stages that have devices of their own; expected 'split'"
        )
    if spec.provisioning.yields_from() is not None:
        _check_hybrids(config, split)
    spec = dataclasses.replace(spec, colocated=spec.colocated or split.colocated)
    spec = with_environments(spec, workload)
    warm = warm_up(table, spec)
    batches = spec.steps
    if table.steady is not False:
        spec = dataclasses.replace(spec, steps=spec.steps + BEYOND)
    pools = zip(split.pools, costs, strict=True)
    return SimulatedFleet(
        spec=spec,
        workload=workload,
        pools=tuple(replica_pool(table, split, pool, found, peers=spec.peers) for pool, found in pools),
        training=training,
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
        failures=failures(table, max(1, round(split.rollout_gpus / split.replicas)), split.trainer_gpus, seed),
        scoring=scoring_pools(table, config.reward),
        relays=config.relay.count,
        faults=simulated_faults(config),
        description=split.describe(),
        config=config,
        ranker=ranker(table, config),
        hand_over=_hand_over(config, table, split, spec.cells),
    )


def _hand_over(config: RunConfig, table: FleetConfig, split: FleetLayout, cells: int) -> HandOverCost:
    """What moves when trainer and replicas take turns; nothing where they do not, or where it is not to be charged."""
    if not (split.colocated and table.hand_over):
        return HandOverCost()
    level = KEEPS_WEIGHTS if config.rollout.sleep_level is None else config.rollout.sleep_level
    of_cell = max(1, split.trainer_gpus // cells)
    return HandOverCost.of(split.model, split.trainer, of_cell, level=level, critic=table.trainer.critic)


def _check_hybrids(config: RunConfig, split: FleetLayout) -> None:
    """Check that hybrids of the pipeline are some of the fleet."""
    marked = [pool.name for pool in config.rollout.pools if pool.hybrid]
    there = [pool.name for pool in split.pools if pool.hybrid]
    if not split.colocated or marked != there:
        wanted = f"a table rollout with hybrid = true for each of {marked}" if marked else "the devices of all replicas"
        placed, name = "colocated" if split.colocated else "split", config.pipeline.provisioning.name
        raise FleetError(
            f"keys 'pipeline.provisioning' and 'fleet': found {name!r}, whose hybrids stand on the "
            f"trainer's devices, with placement = {placed!r} and {len(there)} hybrid tables, expected placement = "
            f"'colocated' and {wanted}"
        )


def _one_silence(config: RunConfig, table: FleetConfig) -> tuple[RunConfig, FleetConfig]:
    """The window of silence of the fleet, or else of the run: members are asked, and detection decides, by the same one."""
    own = "hang_s" in table.delays.model_fields_set
    silent_s = table.delays.hang_s if own else config.deadlines.silent_s
    deadlines = config.deadlines.model_copy(update={"silent_s": silent_s})
    delays = table.delays.model_copy(update={"hang_s": silent_s})
    return config.model_copy(update={"deadlines": deadlines}), table.model_copy(update={"delays": delays})


def _completed(
    config: RunConfig, table: FleetConfig, split: FleetLayout, workload: Workload, costs: Sequence[Mapping[int, Costs]]
) -> RunConfig:
    """Settings that follow from the fleet: the number of replicas, and the cost model that `tailrace fit-cost` would find.

    Of unequal replicas, each pool has its own cost model, and policies that know one only have that of the first.
    """
    first, sizes = split.pools[0], costs[0]
    decode = sizes[first.tp][0]
    rollout: dict[str, Any] = {"replicas": split.replicas}
    if first.name:
        rollout["pools"] = tuple(
            PoolConfig(
                name=pool.name,
                count=pool.replicas,
                site=pool.table.site,
                device=pool.device.name,
                tp=pool.tp,
                hybrid=pool.hybrid,
                prompts_per_replica=pool.table.prompts_per_replica,
                cost_model=_cost_model(found[pool.tp][0]) if table.fit_cost else None,
            )
            for pool, found in zip(split.pools, costs, strict=True)
        )
    if first.tp > 1:
        rollout["options"] = {**config.rollout.options, "tensor_parallel_size": first.tp}
    if table.fit_cost:
        rollout["cost_model"] = _cost_model(decode)
    config = config.model_copy(update={"rollout": config.rollout.model_copy(update=rollout)})
    provisioning = _provisioning(config, table, split, workload, sizes)
    return config.model_copy(update={"pipeline": config.pipeline.model_copy(update={"provisioning": provisioning})})


def _provisioning(
    config: RunConfig, table: FleetConfig, split: FleetLayout, workload: Workload, sizes: Mapping[int, Costs]
) -> Choice:
    """The choice of provisioning, with the options that only the fleet knows: the completed configuration says them too.

    Args:
        config: what is completed but for that.
        sizes: costs of a replica of the first pool, by its devices.

    Raises:
        FleetError: provisioning cannot be on such a fleet.
    """
    chosen, first, usual = config.pipeline.provisioning, split.pools[0], facts_of(config)
    facts = dataclasses.replace(
        usual, heads=split.model.query_heads, devices_per_machine=max(sizes), smallest_tp=min(sizes)
    )
    alike = len(split.pools) == 1
    if table.fit_stages and alike:
        facts = dataclasses.replace(facts, stages=stage_costs(config, split, sizes))
    with contextlib.suppress(ConfigError):  # it is named with what else is wrong
        policy: ProvisioningPolicy = build_policy("provisioning", chosen, facts)
        if table.fit_stages and not (policy.watched_iterations() and alike):
            raise FleetError(
                f"table 'fleet': found fit_stages = true with provisioning {chosen.name!r} and {len(split.pools)} pools, "
                "expected provisioning 'balanced' and one pool"
            )
        if policy.sizes_of_replicas() and not alike:
            raise FleetError(
                f"keys 'pipeline.provisioning' and 'fleet.rollout': found {chosen.name!r}, which resizes replicas, and "
                f"{len(split.pools)} pools of them, expected one pool, or provisioning that resizes none, such as 'static'"
            )
        if policy.sizes_of_replicas():
            groups, samples = config.pipeline.prompts_per_step, config.pipeline.samples_per_prompt
            best = best_size(sizes, workload, first.table, devices=first.gpus, groups=groups, samples=samples)
            facts = dataclasses.replace(facts, best_tp=best)
    factory = load_policy("provisioning", chosen.name)
    known, said = options_from(factory, facts), options_from(factory, usual)
    of_fleet = {name: value for name, value in known.items() if name not in said or said[name] != value}
    return Choice(name=chosen.name, **{**of_fleet, **chosen.options})


def _cost_model(decode: DecodeCost) -> CostModelConfig:
    fitted = decode.coefficients()
    return CostModelConfig(k1=fitted.k1, k2=fitted.k2, k3=fitted.k3, k4=fitted.k4)


def _slow_replicas(table: FleetConfig, replicas: int, seed: int) -> dict[str, float]:
    numbers = random.Random(f"slow {seed}")
    count = round(table.failures.slow_share * replicas)
    return {f"r{index}": table.failures.slow_speed for index in sorted(numbers.sample(range(replicas), count))}
