"""Whether a cluster has the GPUs for the replicas that a run may add."""

from __future__ import annotations

from tailrace.contracts import AddsReplicas
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
    policy = spec.provisioning
    each = replica_gpus(config) / config.rollout.replicas
    if not isinstance(policy, AddsReplicas) or not each:
        return
    if policy.spans is not None:
        each *= policy.spans / (spec.pools[0].tp if spec.pools else spec.tp)
    others = config.trainer.processes * executor.trainer_gpus + executor.scorer_gpus
    needed = policy.most * each + others
    if needed > gpus:
        fit = int((gpus - others) // each)
        raise ConfigError(
            f"key 'pipeline.provisioning': found {policy.most} replicas of {each:g} GPUs at most and "
            f"{others:g} for the other roles on a cluster with {gpus:g} GPUs, expected devices for at most {max(0, fit)} "
            "replicas"
        )
