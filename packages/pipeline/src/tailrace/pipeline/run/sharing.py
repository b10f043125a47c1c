"""Devices that replicas share with cells of the trainer: what a configuration must say so that they are used in turn."""

from __future__ import annotations

from tailrace.contracts import LendsDevices, WatchesIterations, YieldsDevices, adds_gradients
from tailrace.pipeline.config.models import RunConfig
from tailrace.pipeline.errors import ConfigError
from tailrace.pipeline.run.pools import shared_replicas
from tailrace.pipeline.spec import PipelineSpec


def check_shared(config: RunConfig, spec: PipelineSpec) -> None:
    """Check that devices which trainer and replicas share are used in turn, and that none are lent otherwise.

    Raises:
        ConfigError: they are not.
    """
    shared, cells = spec.colocated, spec.cells
    lends = isinstance(spec.provisioning, LendsDevices) and spec.provisioning.lends
    yields = isinstance(spec.provisioning, YieldsDevices)
    adds = adds_gradients(spec.training)
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
    if lends and config.reward.judge.model is not None and part % 1:
        raise ConfigError(
            f"keys 'executor.scorer_gpus' and 'pipeline.provisioning': found {part} of a device for the judge, beside a "
            f"replica, and {config.pipeline.provisioning.name!r}, which may lend that device while the judge is needed; "
            "expected whole devices of its own, such as 1, or 'static' or 'adaptive-tp', which lend none"
        )
    if shared and isinstance(spec.provisioning, WatchesIterations):
        raise ConfigError(
            f"keys 'trainer.colocated' and 'pipeline.provisioning': found true and {config.pipeline.provisioning.name!r}, "
            "which compares the times of stages that have devices of their own; expected false, or 'static'"
        )
    if isinstance(spec.provisioning, WatchesIterations) and len(spec.pools) > 1:
        raise ConfigError(
            f"keys 'rollout.pools' and 'pipeline.provisioning': found {len(spec.pools)} pools and "
            f"{config.pipeline.provisioning.name!r}, which predicts what one replica more or fewer changes where all are "
            "alike; expected one pool, or none"
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
