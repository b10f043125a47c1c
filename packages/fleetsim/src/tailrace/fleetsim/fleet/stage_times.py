"""How long each stage of an iteration takes on a number of devices, and how to share devices between them (StreamRL, 4.2).

    lengths of a batch ──► the engines of so many replicas ──► generation_s ─┐
                       └─► the trainer's cost               ──► train_s     ─┴─► share(devices): Algorithm 1

Nothing of a run is simulated but the engines, so a stage takes milliseconds to ask for. What it leaves out (weights, reports,
preparation that waits) is in a simulation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tailrace.contracts import StageCosts, TailraceError, TrainingPolicy
from tailrace.fleetsim.cost import DecodeCost, PrefillCost, TrainingCost
from tailrace.fleetsim.errors import DoesNotFitError, FleetError
from tailrace.fleetsim.fleet.config import fleet_config
from tailrace.fleetsim.fleet.generation import BatchSample, batch_of, dealt, generate
from tailrace.fleetsim.fleet.layout import FleetLayout, tuned
from tailrace.fleetsim.fleet.pools import Costs
from tailrace.fleetsim.hardware import find_device, model
from tailrace.fleetsim.workload.config import WorkloadConfig
from tailrace.pipeline.config.models import RunConfig
from tailrace.pipeline.config.policies import build_policy
from tailrace.pipeline.run.facts import facts_of
from tailrace.pipeline.run.figures.stages import at_equal_distances
from tailrace.repack import allocate, allocate_across, plan_dispatch

_LENGTHS = 1_000
NEVER = float("inf")
SKEW_AWARE = "skew-aware"


@dataclass(frozen=True, slots=True)
class GenerationPlan:
    """A batch generated on a number of devices.

    Args:
        seconds: until the last trajectory ends; infinite if the devices cannot.
        tensor_parallel: devices of a replica.
        ends: seconds after which each trajectory ends, ascending, and its tokens, prompt included.
    """

    seconds: float
    tensor_parallel: int = 0
    ends: tuple[tuple[float, int], ...] = ()


@dataclass(frozen=True, slots=True)
class DeviceShare:
    """Devices of each stage, and seconds of an iteration.

    Args:
        generate, train: devices.
        tensor_parallel: devices of a replica.
    """

    generate: int
    train: int
    tensor_parallel: int
    iteration_s: float


class StageTimes:
    """The stages of a configuration with a table ``[fleet]``, on any number of its devices.

    Args:
        config: lengths, the batch, the model, kinds of devices, and whether routing is skew-aware; its numbers of devices do
            not matter. Replicas are as those of one pool.
        pool: number of the pool.

    Raises:
        FleetError: the table is wrong, or the model fits on no replica.
    """

    def __init__(self, config: RunConfig, *, pool: int = 0) -> None:
        table = fleet_config(config.fleet)
        if table.model is None:
            raise FleetError("table 'fleet': found no 'model', expected one: times of stages depend on it")
        self._table, self._rollout, self._shape = table, table.rollout[pool], model(table.model)
        self._trainer, kind = find_device(table.trainer.device), tuned(self._rollout)
        pipeline = config.pipeline
        workload = (table.workload or WorkloadConfig()).build(config.seed, config.rollout.max_tokens)
        self._batch = batch_of(workload, pipeline.prompts_per_step, pipeline.samples_per_prompt)
        self._lengths = sorted(one.response_tokens for one in self._batch)
        self._routing = pipeline.routing
        training: TrainingPolicy = build_policy("training", pipeline.training, facts_of(config))
        self._updates = len(training.split(range(pipeline.prompts_per_step)))
        self._costs: dict[int, tuple[DecodeCost, PrefillCost]] = {}
        for size in kind.parallel_sizes:
            try:
                decode = DecodeCost.of(self._shape, kind, size)
            except FleetError:  # such a replica cannot be
                continue
            if decode.kv_capacity_tokens >= max(one.tokens for one in self._batch):
                self._costs[size] = decode, PrefillCost.of(self._shape, kind, size)
        if not self._costs:
            raise DoesNotFitError(f"{self._shape.name} fits on no number of {kind.name} that one replica can have")
        self._known: dict[int, GenerationPlan] = {}

    @property
    def lengths(self) -> Sequence[int]:
        """Response tokens of the trajectories of a batch, ascending."""
        return self._lengths

    @property
    def sizes(self) -> Sequence[int]:
        """Devices that a replica can have, ascending."""
        return sorted(self._costs)

    def generation(self, devices: int) -> GenerationPlan:
        """The fastest way to generate a batch on so many devices, all submitted at once; of equals, the smallest replicas."""
        if devices not in self._known:
            found = [self._with(size, devices // size) for size in self.sizes if devices % size == 0]
            self._known[devices] = min(found, key=lambda one: one.seconds, default=GenerationPlan(NEVER))
        return self._known[devices]

    def _with(self, size: int, replicas: int) -> GenerationPlan:
        costs, batch = self._costs[size], self._batch
        tokens = {one.name: one.tokens for one in batch}
        ends = sorted((at, tokens[name]) for at, name in generate(costs, self._queues(size, replicas), self._rollout))
        return GenerationPlan(ends[-1][0], size, tuple(ends))

    def _queues(self, size: int, replicas: int) -> list[Sequence[BatchSample]]:
        batch = self._batch
        if self._routing.name != SKEW_AWARE:
            return dealt(batch, replicas)
        decode, median, last = self._costs[size][0], self._lengths[len(self._lengths) // 2], len(self._lengths) - 1
        most = self._rollout.max_running
        plan = plan_dispatch(
            [one.response_tokens for one in batch],
            replicas,
            step_latency_s=lambda running: decode.step_s(running, running * median),
            max_batch=lambda length: max(1, min(most, int(decode.kv_capacity_tokens // length))),
            p50=median,
            p90=self._lengths[round(0.9 * last)],
            **{name: value for name, value in self._routing.options.items() if name == "alpha"},
        )
        return [[batch[position] for position in queue] for queue in plan.queues]

    def train_s(self, devices: int) -> float:
        """Seconds of training on a batch that is complete; infinite if the model does not fit so many devices."""
        at = self._table.trainer
        try:
            cost = TrainingCost.of(
                self._shape,
                self._trainer,
                devices,
                mfu=at.mfu,
                passes=at.passes,
                optimizer_s=at.optimizer_s,
                critic=at.critic,
                tensor_parallel=at.tensor_parallel,
                pipeline_parallel=at.pipeline_parallel,
                context_parallel=at.context_parallel,
                layer_s=at.layer_s,
            )
        except TailraceError:
            return NEVER
        tokens = [one.tokens for one in self._batch]
        load = sum(tokens), float(sum(count * count for count in tokens))
        update_s = cost.update_s(*load, self._updates, len(tokens))
        return at.data_s + cost.preparation_s(*load, len(tokens)) + update_s

    def streamed_s(self, generation: GenerationPlan, devices: int) -> float:
        """Seconds of an iteration in which each trajectory is trained on as it ends: the pipelined makespan (section 4.1)."""
        train_s = self.train_s(devices)
        if train_s == NEVER or generation.seconds == NEVER:
            return NEVER
        whole, done_s = sum(tokens for _, tokens in generation.ends), 0.0
        for at, tokens in generation.ends:
            done_s = max(done_s, at) + train_s * tokens / whole
        return done_s

    def share(self, devices: int, *, unit: int = 1, streamed: bool = False) -> DeviceShare:
        """Share the devices of one datacenter between both stages (Algorithm 1, first part).

        Args:
            devices: in all; some may be left over.
            unit: devices are given to a stage so many at a time.
            streamed: an iteration takes as long as `streamed_s`; otherwise as long as the slower stage: they overlap fully.

        Raises:
            NothingFitsError: no allocation fits.
        """
        units = devices // unit
        made = {self.generation(count * unit).seconds: self.generation(count * unit) for count in range(1, units)}
        trained = {self.train_s(count * unit): count * unit for count in range(1, units)}

        def makespan_s(generating_s: float, training_s: float) -> float:
            return self.streamed_s(made[generating_s], trained[training_s])

        found = allocate(
            units,
            lambda count: self.generation(count * unit).seconds,
            lambda count: self.train_s(count * unit),
            iteration_s=makespan_s if streamed else max,
        )
        return self._shared(found.generate * unit, found.train * unit, found.iteration_s)

    def share_across(self, generate: int, train: int, *, unit: int = 1) -> DeviceShare:
        """Devices of each stage where each has a datacenter of its own (Algorithm 1, second part).

        Args:
            generate, train: devices there are.
            unit: see `share`.

        Raises:
            NothingFitsError: a stage does not fit its devices.
        """
        found = allocate_across(
            generate // unit,
            train // unit,
            lambda count: self.generation(count * unit).seconds,
            lambda count: self.train_s(count * unit),
        )
        return self._shared(found.generate * unit, found.train * unit, found.iteration_s)

    def _shared(self, generate_devices: int, train_devices: int, iteration_s: float) -> DeviceShare:
        size = self.generation(generate_devices).tensor_parallel
        return DeviceShare(generate_devices, train_devices, size, iteration_s)


def stage_costs(config: RunConfig, split: FleetLayout, sizes: Mapping[int, Costs]) -> StageCosts:
    """What `tailrace fit-cost` would find of both stages: costs of replicas, training, lengths, devices.

    Args:
        sizes: costs of a replica, by its devices.
    """
    times = StageTimes(config)
    costs = []
    for size, (decode, _) in sorted(sizes.items()):
        fitted = decode.coefficients()
        costs.append((size, decode.kv_capacity_tokens, fitted.k1, fitted.k2, fitted.k3, fitted.k4))
    return StageCosts(
        devices=split.rollout_gpus,
        replica_costs=tuple(costs),
        train_s=times.train_s(split.trainer_gpus),
        lengths=tuple(at_equal_distances(times.lengths, min(_LENGTHS, len(times.lengths)))),
    )
