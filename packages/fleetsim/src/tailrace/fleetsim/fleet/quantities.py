"""Quantities of a fleet that follow from its configuration and its pipeline."""

from __future__ import annotations

import dataclasses

from tailrace.contracts import Launch, Progress
from tailrace.controller.spec import PipelineSpec
from tailrace.faulttol import CONTROLLER, Fault
from tailrace.fleetsim.errors import FleetError
from tailrace.fleetsim.fleet.config import FleetConfig, RankerFleet, ScoringPool
from tailrace.fleetsim.fleet.fleet import ScoringWorkers
from tailrace.fleetsim.host.failures import DAY_S, FailureRate
from tailrace.fleetsim.noisy_oracle import noise_of
from tailrace.fleetsim.workload.workload import Workload
from tailrace.pipeline.config.models import RewardConfig, RunConfig
from tailrace.pipeline.run.scripted_faults import build_faults
from tailrace.reward.errors import SettingsError
from tailrace.reward.timeouts import AdaptiveTimeout

WARM_UP = 10


def samples(spec: PipelineSpec) -> int:
    """Trajectories launched for a prompt."""
    launch = _first_launch(spec)
    return 1 if launch is None else launch.samples


def needed(spec: PipelineSpec) -> int:
    """Trajectories with which a group is complete."""
    launch = _first_launch(spec)
    return 1 if launch is None else launch.needed


def launched(spec: PipelineSpec) -> int:
    """Trajectories that the first batch launches, or the first short round."""
    source = spec.batching.open()
    launch = source.next(_beginning(spec))
    if launch is None:
        return 0
    groups = 1 + source.unlaunched() if source.launches_rounds() else spec.batch_groups + spec.batching.surplus_groups
    return groups * launch.samples


def _first_launch(spec: PipelineSpec) -> Launch | None:
    return spec.batching.open().next(_beginning(spec))


def _beginning(spec: PipelineSpec) -> Progress:
    return Progress(0, -1, 0, 0, 0, 0, 0, spec.batch_groups, spec.steps)


def simulated_faults(config: RunConfig) -> tuple[Fault, ...]:
    """The scripted faults of a configuration.

    Raises:
        FleetError: one strikes what no simulation has.
    """
    faults = tuple(build_faults(config))
    for fault in faults:
        if fault.role == CONTROLLER or fault.worker is not None:
            what = "driver that dies" if fault.role == CONTROLLER else "worker process"
            raise FleetError(f"key 'faults': {fault}: found a simulated run, expected a real one: it has no {what}")
    return faults


def with_environments(spec: PipelineSpec, workload: Workload) -> PipelineSpec:
    """The pipeline with an environment at least, where trajectories of the workload have several turns."""
    return dataclasses.replace(spec, environments=1) if workload.turns and not spec.environments else spec


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


def scoring_pools(table: FleetConfig, reward: RewardConfig) -> dict[str, ScoringWorkers]:
    """The workers of each kind that the workload has.

    Args:
        table: the fleet, whose pools lie over those of the run.
        reward: the run's own pools.

    Raises:
        FleetError: a pool has no kind, or no workers, or its timeouts contradict each other.
    """
    kinds = [part.kind for part in table.workload.scoring] if table.workload is not None else []
    if odd := sorted(table.scoring.keys() - set(kinds)):
        raise FleetError(
            f"table 'fleet': found scoring.{odd[0]}, expected a pool of workload.scoring: {kinds or 'none'}"
        )
    return {kind: _scoring_workers(kind, table.scoring.get(kind, ScoringPool()), reward) for kind in kinds}


def ranker(table: FleetConfig, config: RunConfig) -> RankerFleet | None:
    """How the ranker errs and learns.

    Raises:
        FleetError: the run has no ranker, none can have such recalls, or one without errors is to drift.
    """
    if table.ranker is None:
        return None
    if config.ranker is None:
        raise FleetError("table 'fleet': found 'ranker' in a run without one, expected a table [ranker] beside it")
    if table.ranker.recalls:
        noise_of(table.ranker.recalls)
    elif table.ranker.drift:
        raise FleetError(
            f"table 'fleet': found ranker.drift = {table.ranker.drift} without a recall, expected one, such as recall20 = 0.9: "
            "errors grow, and there are none"
        )
    return table.ranker


def _scoring_workers(kind: str, pool: ScoringPool, reward: RewardConfig) -> ScoringWorkers:
    workers = getattr(getattr(reward, kind, None), "workers", None) if pool.workers is None else pool.workers
    if workers is None:
        raise FleetError(
            f"table 'fleet': found the kind {kind!r} in workload.scoring, expected its workers: scoring.{kind}.workers"
        )
    names = ("min_timeout_s", "max_timeout_s", "timeout_factor")
    given = [getattr(reward.code if getattr(pool, name) is None else pool, name) for name in names]
    try:
        return ScoringWorkers(workers, AdaptiveTimeout(*given), pool.at_step_end, pool.slows)
    except SettingsError as error:
        raise FleetError(f"table 'fleet': scoring.{kind}: {error}") from None


def failures(table: FleetConfig, replica_gpus: int, trainer_gpus: int, seed: int) -> FailureRate:
    """Members that die at random."""
    rate = table.failures.per_1000_gpu_days / 1000 / DAY_S
    return FailureRate(rate, replica_gpus, trainer_gpus, seed)
