"""Quantities of a fleet that follow from its configuration and its pipeline."""

from __future__ import annotations

from tailrace.contracts import Progress
from tailrace.fleetsim.config import FleetConfig
from tailrace.fleetsim.errors import FleetError
from tailrace.fleetsim.failures import DAY_S, FailureRate
from tailrace.pipeline.spec import PipelineSpec

WARM_UP = 10


def samples(spec: PipelineSpec) -> int:
    """Trajectories launched for a prompt."""
    launch = spec.batching.open().next(Progress(0, -1, 0, 0, 0, 0, 0, spec.batch_groups, spec.steps))
    return 1 if launch is None else launch.samples


def parts(spec: PipelineSpec) -> int:
    """Mini-batches of a batch."""
    return len(spec.training.split(list(range(spec.batch_groups))))


def warm_up(table: FleetConfig, spec: PipelineSpec) -> int:
    """Batches that are not measured."""
    chosen = min(WARM_UP, spec.steps // 3) if table.warm_up is None else table.warm_up
    if chosen >= spec.steps:
        raise FleetError(
            f"found fleet.warm_up = {chosen} and pipeline.steps = {spec.steps}, expected fewer batches of warm-up than "
            f"batches: at most {spec.steps - 1}"
        )
    return chosen


def failures(table: FleetConfig, replica_gpus: int, trainer_gpus: int, seed: int) -> FailureRate:
    """Members that die at random."""
    rate = table.failures.per_1000_gpu_days / 1000 / DAY_S
    return FailureRate(rate, replica_gpus, trainer_gpus, seed)
