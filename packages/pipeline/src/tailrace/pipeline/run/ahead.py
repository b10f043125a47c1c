"""Starts the processes of a run's members beside its preparation, and imports their libraries there.

A warm start leaves a core idle, and vLLM's import takes longer than the rest of a replica's start.
"""

from __future__ import annotations

from tailrace.contracts import AddsReplicas
from tailrace.contracts.plugins import load
from tailrace.pipeline.config.models import RunConfig
from tailrace.pipeline.executor.deployment import DATA, RELAY, REPLICA, SCORER, TRAINER
from tailrace.pipeline.executor.seam import RoleSpec
from tailrace.pipeline.hosts.ray import RayHost
from tailrace.pipeline.run.build import CPU_ENVIRONMENT, build_spec, selected_engine
from tailrace.pipeline.run.pools import relay_count


def start_ahead(host: RayHost, config: RunConfig) -> None:
    """Start the first members of a run. What they import must be importable on the cluster."""
    from tailrace.rollout import import_engine

    for role, ids in ((DATA, ["0"]), (SCORER, ["0"]), (RELAY, [str(index) for index in range(relay_count(config))])):
        for id_ in ids:
            gpus = config.executor.scorer_gpus if role == SCORER else 0.0
            host.prepare(role, id_, RoleSpec(_nothing, gpus=gpus))
    if config.trainer.processes == 1:
        backend = {"group": "tailrace.backend", "name": config.trainer.backend}
        gpus = config.executor.trainer_gpus
        host.prepare(TRAINER, "0", RoleSpec(load, backend, gpus=gpus, environment=CPU_ENVIRONMENT))
    count, factor = (0, 1.0) if config.rollout.pools else _replicas(config)
    replica = RoleSpec(
        import_engine,
        {"name": selected_engine(config)},
        gpus=factor * config.executor.replica_gpus,
        environment=CPU_ENVIRONMENT,
        nice=config.rollout.nice,
    )
    first = None
    for index in range(count):  # the others find bytecode and warm files
        done = host.prepare(REPLICA, f"r{index}", replica, after=first)
        first = first or done


def _replicas(config: RunConfig) -> tuple[int, float]:
    """Replicas at the start, and how many times the devices that the configuration says each of them has."""
    spec = build_spec(config)
    policy = spec.provisioning
    if not isinstance(policy, AddsReplicas):
        return config.rollout.replicas, 1.0
    return policy.start, 1.0 if policy.spans is None else policy.spans / spec.tp


def _nothing() -> None:
    """The process is all that is wanted."""
