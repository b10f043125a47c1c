"""Whether a cluster has the GPUs for a run's members, and for the replicas that it may add."""

from __future__ import annotations

from tailrace.pipeline.config.models import RunConfig
from tailrace.pipeline.errors import ConfigError, Gathered
from tailrace.pipeline.run.build import build_spec
from tailrace.pipeline.run.device_shares import ranks_without_gpus
from tailrace.pipeline.run.pools import ranker_gpus, replica_gpus, replica_pools, tensor_parallel


def check_devices_there(config: RunConfig, gpus: float, most: float) -> None:
    """Refuse a run whose members could not all be placed: one would wait for its GPUs until its deadline.

    Args:
        gpus: of the whole cluster.
        most: of the machine that has most.

    Raises:
        ConfigError: there are too few; a line for each reason.
    """
    executor, gathered = config.executor, Gathered()
    pools, own_tp = replica_pools(config), tensor_parallel(config.rollout.options)
    largest = max((executor.replica_gpus * pool.tp / own_tp for pool in pools), default=executor.replica_gpus)
    for key, each in {
        "replica_gpus": largest,
        "trainer_gpus": executor.trainer_gpus,
        "scorer_gpus": executor.scorer_gpus,
        "ranker_gpus": ranker_gpus(config),
    }.items():
        if each > most:
            gathered.add(
                f"key 'executor.{key}': found {each:g} GPUs for one member on a cluster whose machines have {most:g} at most, "
                "expected no more: a member stands on one machine"
            )
    ranks = config.trainer.processes * executor.trainer_gpus
    if executor.placement == "strict-pack" and ranks > most:
        gathered.add(
            f"key 'executor.placement': found 'strict-pack' for ranks with {ranks:g} GPUs on a cluster whose machines have "
            f"{most:g} at most, expected 'pack'"
        )
    total = ranks + replica_gpus(config) + executor.scorer_gpus + ranker_gpus(config)
    if total > gpus:
        gathered.add(
            "keys 'executor.trainer_gpus', 'executor.replica_gpus', 'executor.scorer_gpus' and 'executor.ranker_gpus': found "
            f"{total:g} GPUs for all members on a cluster with {gpus:g}, expected no more than there are"
        )
    gathered.add(*ranks_without_gpus(config, cuda=gpus > 0))
    gathered.done()


def check_free_devices(config: RunConfig, gpus: float) -> None:
    """Refuse a run whose policy may add replicas that could not be placed: one would wait for its GPUs until its deadline.

    Args:
        gpus: of the whole cluster.

    Raises:
        ConfigError: there are too few.
    """
    spec, executor = build_spec(config), config.executor
    growth = spec.provisioning.growth()
    each = replica_gpus(config) / config.rollout.replicas
    if growth is None or not each:
        return
    others = config.trainer.processes * executor.trainer_gpus + executor.scorer_gpus + ranker_gpus(config)
    if growth.pool:  # what it adds is like its own; the other pools stay as they are
        pool = next(pool for pool in spec.pools if pool.name == growth.pool)
        each = executor.replica_gpus * pool.tp / spec.tp
        others += replica_gpus(config) - growth.start * each
    elif growth.spans is not None:
        each *= growth.spans / (spec.pools[0].tp if spec.pools else spec.tp)
    needed = growth.most * each + others
    if needed > gpus:
        fit = int((gpus - others) // each)
        raise ConfigError(
            f"key 'pipeline.provisioning': found {growth.most} replicas of {each:g} GPUs at most and "
            f"{others:g} for the other roles on a cluster with {gpus:g} GPUs, expected devices for at most {max(0, fit)} "
            "replicas"
        )
