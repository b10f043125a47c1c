"""Quantities of a fleet that follow from its configuration and its pipeline."""

from __future__ import annotations

from tailrace.contracts import Progress
from tailrace.fleetsim.config import FleetConfig, ScoringPool
from tailrace.fleetsim.errors import FleetError
from tailrace.fleetsim.failures import DAY_S, FailureRate
from tailrace.pipeline.spec import PipelineSpec

WARM_UP = 10
_ONE = {True: "workload.scoring", False: "scoring"}


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


def scoring_pools(table: FleetConfig) -> dict[str, ScoringPool]:
    """The workers of each kind that the workload has.

    Raises:
        FleetError: a kind has no pool, or a pool no kind.
    """
    kinds = {part.kind for part in table.workload.scoring} if table.workload is not None else set()
    if odd := sorted(kinds ^ table.scoring.keys()):
        missing = "workload.scoring of that kind" if odd[0] in table.scoring else f"a pool: scoring.{odd[0]}.workers"
        raise FleetError(
            f"table 'fleet': found the kind {odd[0]!r} in {_ONE[odd[0] in kinds]} only, expected {missing}"
        )
    return dict(table.scoring)


def failures(table: FleetConfig, replica_gpus: int, trainer_gpus: int, seed: int) -> FailureRate:
    """Members that die at random."""
    rate = table.failures.per_1000_gpu_days / 1000 / DAY_S
    return FailureRate(rate, replica_gpus, trainer_gpus, seed)
