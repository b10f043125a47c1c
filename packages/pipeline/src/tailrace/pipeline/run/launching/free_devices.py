"""Whether a cluster has the GPUs for the replicas that a run may add."""

from __future__ import annotations

from tailrace.pipeline.config.models import RunConfig
from tailrace.pipeline.errors import ConfigError
from tailrace.pipeline.run.build import build_spec
from tailrace.pipeline.run.pools import replica_gpus


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
    if growth.spans is not None:
        each *= growth.spans / (spec.pools[0].tp if spec.pools else spec.tp)
    others = config.trainer.processes * executor.trainer_gpus + executor.scorer_gpus
    needed = growth.most * each + others
    if needed > gpus:
        fit = int((gpus - others) // each)
        raise ConfigError(
            f"key 'pipeline.provisioning': found {growth.most} replicas of {each:g} GPUs at most and "
            f"{others:g} for the other roles on a cluster with {gpus:g} GPUs, expected devices for at most {max(0, fit)} "
            "replicas"
        )
