"""Pools of replicas and sites of relays: what a configuration's `[[rollout.pools]]` and `[relay.sites]` become."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping
from typing import Any

from tailrace.contracts import expected_one_of
from tailrace.controller.spec import PipelineSpec, RolloutPool
from tailrace.pipeline.config.models import RunConfig
from tailrace.pipeline.config.options import read_options
from tailrace.pipeline.config.pools import PoolConfig
from tailrace.pipeline.errors import ConfigError, Gathered
from tailrace.runtime.executor.deployment import PoolReplicas
from tailrace.runtime.executor.seam import RoleSpec
from tailrace.runtime.hosts.ray_placement import SITE

_TP = "tensor_parallel_size"


def tensor_parallel(options: Mapping[str, Any]) -> int:
    """Devices that a replica spans at the start; what is no number of devices is refused with the other engine options."""
    size = options.get(_TP, 1)
    return size if isinstance(size, int) and size > 0 else 1


def engine_options(config: RunConfig, pool: PoolConfig) -> dict[str, Any]:
    """The engine options of a pool: its own over those of all replicas."""
    size = {} if pool.tp is None else {_TP: pool.tp}
    return {**config.rollout.options, **pool.options, **size}


def replica_pools(config: RunConfig) -> tuple[RolloutPool, ...]:
    """The pools of a pipeline; empty if all replicas are alike, at the trainer's site."""
    pipeline = config.pipeline
    return tuple(
        RolloutPool(
            pool.name,
            pool.count,
            pool.site,
            tensor_parallel(engine_options(config, pool)),
            (pool.prompts_per_replica or pipeline.prompts_per_replica) * pipeline.samples_per_prompt,
            pool.hybrid,
            standby=not pool.site and not pool.device and not pool.hybrid,
        )
        for pool in config.rollout.pools
    )


def shared_replicas(config: RunConfig) -> list[int]:
    """The devices of each replica that may share its own with the trainer: of the hybrid pools, or all where there are none."""
    hybrids = [pool for pool in replica_pools(config) if pool.hybrid]
    if hybrids:
        return [pool.tp for pool in hybrids for _ in range(pool.count)]
    return [tensor_parallel(config.rollout.options)] * config.rollout.replicas


def cell_devices(config: RunConfig) -> int:
    """Devices on which each cell of the trainer stands, where it shares them."""
    return max(1, sum(shared_replicas(config)) // config.trainer.cells)


def pool_replicas(config: RunConfig, role: RoleSpec) -> dict[str, PoolReplicas]:
    """How the replicas of each pool are started, from how those would be that are all alike."""
    found = {}
    own_tp = tensor_parallel(config.rollout.options)
    for pool in config.rollout.pools:
        options = engine_options(config, pool)
        tp = tensor_parallel(options)
        settings = dataclasses.replace(role.settings, options={**role.settings.options, **options})
        gpus = role.gpus * tp / own_tp
        own = dataclasses.replace(role.having(settings), gpus=gpus, device=pool.device)
        found[pool.name] = PoolReplicas(own, tp)
    return found


def replica_gpus(config: RunConfig) -> float:
    """GPUs of all replicas at the start."""
    pools, each, own_tp = replica_pools(config), config.executor.replica_gpus, tensor_parallel(config.rollout.options)
    return sum(pool.count * each * pool.tp / own_tp for pool in pools) if pools else config.rollout.replicas * each


def ranker_gpus(config: RunConfig) -> float:
    """GPUs of the ranker; none without one."""
    return 0.0 if config.ranker is None else config.executor.ranker_gpus


def relay_sites(config: RunConfig) -> tuple[str, ...]:
    """The site of each relay, the trainer's first; empty if all are there."""
    others = [site for site, count in config.relay.sites.items() for _ in range(count)]
    return (*[""] * config.relay.count, *others) if others else ()


def relay_count(config: RunConfig) -> int:
    """Relays at all sites."""
    return config.relay.count + sum(config.relay.sites.values())


def offers_weights(config: RunConfig) -> bool:
    """Whether replicas offer the versions that they serve to each other."""
    return config.relay.mode == "peer"


def relay_slots(config: RunConfig) -> int:
    """Versions that each relay holds: with sites one more, so that the base of the next delta outlasts a link that is slow."""
    return config.relay.versions or (3 if config.relay.sites else 2)


def check_pools(config: RunConfig) -> None:
    """Check names, sites, sizes and engine options of all pools.

    Raises:
        ConfigError: one is wrong; a line for each.
    """
    from tailrace.rollout import EngineOptions

    pools, sites = config.rollout.pools, config.relay.sites
    gathered = Gathered()
    if "" in sites:
        gathered.add("key 'relay.sites': found a site without a name, expected those that are not the trainer's")
    for name, count in Counter(pool.name for pool in pools).items():
        if count > 1 or not name:
            gathered.add(f"key 'rollout.pools': found {count} with the name {name!r}, expected one name for each")
    for place, pool in enumerate(pools):
        key = f"rollout.pools.{place}"
        if pool.site and pool.site not in sites:
            known = (
                expected_one_of(pool.site, list(sites)) if sites else "expected a site of 'relay.sites'; it has none"
            )
            gathered.add(f"key '{key}.site': found the unknown site {pool.site!r}, {known}")
        if pool.tp is not None and _TP in pool.options:
            gathered.add(f"keys '{key}.tp' and '{key}.options.{_TP}': found both, expected one of them")
        with gathered.check():
            read_options(EngineOptions, {**config.rollout.options, **pool.options}, f"key '{key}.options'")
    total = sum(pool.count for pool in pools)
    if pools and total != config.rollout.replicas:
        gathered.add(
            f"keys 'rollout.replicas' and 'rollout.pools': found {config.rollout.replicas} replicas and {total} in the pools, "
            "expected as many, or no 'rollout.replicas'"
        )
    hybrids = [pool.name for pool in pools if pool.hybrid]
    if pools and config.trainer.colocated != bool(hybrids):
        found = f"hybrid = true of {hybrids[0]!r}" if hybrids else "no pool with hybrid = true"
        gathered.add(
            f"keys 'trainer.colocated' and 'rollout.pools': found {str(config.trainer.colocated).lower()} and {found}, "
            "expected true and at least one hybrid pool, which stands on the trainer's devices, or neither"
        )
    for place, pool in enumerate(pools):
        if pool.hybrid and pool.site:
            gathered.add(
                f"key 'rollout.pools.{place}.site': found {pool.site!r} of a hybrid pool, expected the trainer's"
            )
    gathered.done()


def check_labels(config: RunConfig, sites: Mapping[str, int]) -> None:
    """Check that a cluster has machines at every site of a run.

    Args:
        sites: machines of the cluster by the site that their label says; those without one are not counted.

    Raises:
        ConfigError: a site has none.
    """
    missing = [site for site in config.relay.sites if not sites.get(site)]
    if missing:
        raise ConfigError(
            f"key 'relay.sites': found no machine with the label {SITE}={missing[0]} in the cluster, expected one: "
            f"ray start --labels {SITE}={missing[0]}; found the sites {', '.join(sorted(sites)) or 'none'}"
        )


def check_shared(config: RunConfig, spec: PipelineSpec) -> None:
    """Check that devices which trainer and replicas share are used in turn, and that none are lent otherwise.

    Raises:
        ConfigError: they are not.
    """
    shared, cells = spec.colocated, spec.cells
    lends = spec.provisioning.lends_devices()
    yields = spec.provisioning.yields_from() is not None
    adds = spec.training.early_gradients() is not None
    if lends and not (shared and adds and cells > 1):
        raise ConfigError(
            f"key 'pipeline.provisioning': found {config.pipeline.provisioning.name!r}, which lends devices of replicas to "
            f"cells of the trainer, with trainer.colocated = {str(shared).lower()}, trainer.cells = {cells} and training "
            f"{config.pipeline.training.name!r}, expected true, at least 2 and 'streamed'"
        )
    if yields and not shared:
        raise ConfigError(
            f"keys 'pipeline.provisioning' and 'trainer.colocated': found {config.pipeline.provisioning.name!r}, whose "
            "hybrids yield their devices to the trainer, and false, expected true"
        )
    if lends and spec.pools:
        raise ConfigError(
            f"keys 'pipeline.provisioning' and 'rollout.pools': found {config.pipeline.provisioning.name!r}, which lends "
            f"devices of some replicas, and {len(spec.pools)} pools, expected replicas that are all alike"
        )
    part = config.executor.scorer_gpus
    if lends and config.reward.judge.model is not None and part % 1 and spec.judge_cell is None:
        raise ConfigError(
            f"keys 'executor.scorer_gpus' and 'pipeline.provisioning': found {part} of a device for the judge, beside a "
            f"replica that is not known, and {config.pipeline.provisioning.name!r}, which may lend that device while the judge "
            "is needed; expected whole devices of its own, such as 1, or shares of the ranks and replicas beside it too "
            "(executor.trainer_gpus, executor.replica_gpus)"
        )
    if shared and spec.provisioning.watched_iterations():
        raise ConfigError(
            f"keys 'trainer.colocated' and 'pipeline.provisioning': found true and {config.pipeline.provisioning.name!r}, "
            "which compares the times of stages that have devices of their own; expected false, or 'static'"
        )
    growth = spec.provisioning.growth()
    if spec.provisioning.watched_iterations() and len(spec.pools) > 1 and not (growth is not None and growth.pool):
        raise ConfigError(
            f"keys 'rollout.pools' and 'pipeline.provisioning': found {len(spec.pools)} pools and "
            f"{config.pipeline.provisioning.name!r}, expected the one whose replicas come and go (pipeline.provisioning.pool), "
            "one pool, or none"
        )
    trains_on = spec.provisioning.trains_on()
    if trains_on not in (None, config.trainer.processes):
        raise ConfigError(
            f"keys 'trainer.processes' and 'pipeline.provisioning': found {config.trainer.processes} and "
            f"{config.pipeline.provisioning.name!r}, which gives the trainer {trains_on} devices, expected as many processes"
        )
    if shared and not yields and spec.admission.gate(spec.batch_groups).bound != 0:
        raise ConfigError(
            f"key 'trainer.colocated': found true and admission {config.pipeline.admission.name!r}, expected 'on-policy', or "
            "provisioning 'hybrid': otherwise replicas generate while the trainer computes on their devices"
        )
    standing = len(shared_replicas(config))
    if shared and standing % cells:
        raise ConfigError(
            f"keys 'rollout.replicas' and 'trainer.cells': found {standing} on the trainer's devices and {cells} with "
            "trainer.colocated = true, expected as many replicas on the devices of each cell"
        )
