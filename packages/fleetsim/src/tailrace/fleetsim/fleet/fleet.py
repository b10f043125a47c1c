"""The parts of a simulation, built from a configuration: costs, devices, delays, a workload and the pipeline."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from tailrace.controller.spec import PipelineSpec
from tailrace.faulttol import Fault
from tailrace.fleetsim.cost.weights import HandOverCost
from tailrace.fleetsim.engine import ModelledEngine
from tailrace.fleetsim.fleet.config import DelayConfig, Goal, RankerFleet
from tailrace.fleetsim.fleet.pools import ReplicaPool, WeightCosts, pool_of
from tailrace.fleetsim.host.failures import FailureRate
from tailrace.fleetsim.workload.workload import Workload
from tailrace.pipeline.config.models import RunConfig
from tailrace.reward.timeouts import AdaptiveTimeout


class FleetTraining(Protocol):
    """The cost of training on all the trainer's devices."""

    def preparation_s(self, tokens: int, square_tokens: float, sequences: int = 0) -> float:
        """Seconds of the forward passes before a mini-batch; the second argument is the sum of its squared lengths."""
        ...

    def update_s(self, tokens: int, square_tokens: float, optimizer_steps: int = 1, sequences: int = 0) -> float:
        """Seconds of the gradients of a batch or a part of it, and of its optimizer steps."""
        ...


@dataclass(frozen=True, slots=True)
class ScoringWorkers:
    """The workers that score one kind.

    Args:
        workers: scores that run at once.
        timeout: the rule by which a score ends.
        at_step_end: no score starts before all of the step's trajectories are finished.
        slows: while any of its scores runs, the replicas' work takes so many times as long.
    """

    workers: int
    timeout: AdaptiveTimeout
    at_step_end: bool = False
    slows: float = 1.0


@dataclass(frozen=True, slots=True)
class SimulatedFleet:
    """One fleet with its pipeline.

    Args:
        pools: the replicas, in the order of their numbers; those of one pool are alike.
        samples: trajectories launched for a prompt.
        needed: of those, with how many a group is complete.
        parts: mini-batches of a batch.
        data_s: seconds to sample a batch and move it to the trainer.
        gpus: devices in all; colocated ones count once.
        devices: number of devices by name; empty if they have none.
        price_per_hour: price of all devices, in the user's currency; None if they have none.
        goal: the training whose duration and price are wanted.
        cores: processor cores that replicas and trainer share, less what others take; None if each has its own.
        replica_cores, trainer_cores: number of shared cores that a replica or the trainer keeps busy.
        warm_up: batches that are not measured.
        batches: number of batches after which the simulation stops; the pipeline's own number may be higher.
        slow: speeds of slow replicas.
        failures: members that die by themselves.
        scoring: the workers that score each kind; empty if every trajectory is scored at once.
        relays: one per machine of those that matter.
        faults: scripted ones.
        description: the fleet in words.
        config: the configuration, with what follows from the fleet; None if there is none.
        hand_over: what moves when trainer and replicas take turns on devices; nothing by default.
        ranker: how the ranker errs and learns; None if it knows all that can be known.
    """

    spec: PipelineSpec
    workload: Workload
    pools: tuple[ReplicaPool, ...]
    training: FleetTraining
    delays: DelayConfig
    samples: int
    parts: int
    data_s: float
    gpus: int
    devices: Mapping[str, int] = field(default_factory=dict)
    price_per_hour: float | None = None
    goal: Goal | None = None
    cores: float | None = None
    replica_cores: float = 1.0
    trainer_cores: float = 1.0
    warm_up: int = 0
    batches: int | None = None
    slow: dict[str, float] = field(default_factory=dict)
    failures: FailureRate = field(default_factory=FailureRate)
    scoring: Mapping[str, ScoringWorkers] = field(default_factory=dict)
    needed: int = 1
    relays: int = 1
    faults: tuple[Fault, ...] = ()
    description: str = ""
    config: RunConfig | None = None
    ranker: RankerFleet | None = None
    hand_over: HandOverCost = field(default_factory=HandOverCost)

    @property
    def weights(self) -> WeightCosts:
        """The cost of moving a version to the first pool; its stall is the trainer's for a publish."""
        return self.pools[0].weights

    @property
    def trainer_gpus(self) -> int:
        """Devices on which no replica stands; at least 1."""
        return max(1, self.gpus - sum(pool.replicas * pool.tp for pool in self.pools))

    @property
    def beside(self) -> dict[str, Any]:
        """What the pipeline has that its configuration does not say; see `RunDirectory.create`."""
        spec = self.spec
        own = {"steps": spec.steps, "colocated": spec.colocated, "environments": spec.environments}
        return {**own, "relays": self.relays}

    def pool(self, replica: str) -> ReplicaPool:
        """The replicas like this one."""
        return pool_of(self.pools, replica)

    def pool_named(self, name: str) -> ReplicaPool:
        """The pool of a name; the first if none has it, where the pools of a run do not differ in their costs."""
        return next((pool for pool in self.pools if pool.name == name), self.pools[0])

    def engine(self, now: float, pool: ReplicaPool, tp: int | None = None) -> ModelledEngine:
        """A replica's engine, empty."""
        decode, prefill = pool.costs(tp or pool.tp)
        return ModelledEngine(
            decode,
            prefill,
            max_running=pool.rollout.max_running,
            start_s=now,
        )

    def speed(self, replica: str) -> float:
        """A replica's speed, 1.0 as modelled."""
        return self.slow.get(replica, 1.0)
