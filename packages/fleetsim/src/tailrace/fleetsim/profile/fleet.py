"""Builds a fleet from a machine's profile, to simulate a pipeline on the machine that was measured."""

from __future__ import annotations

from dataclasses import dataclass

from tailrace.controller.spec import PipelineSpec
from tailrace.fleetsim.cost import DecodeCost, PrefillCost, TrainingCost
from tailrace.fleetsim.engine import ModelledEngine
from tailrace.fleetsim.errors import FleetError
from tailrace.fleetsim.fleet.config import DelayConfig, FleetConfig, Goal, RolloutFleet
from tailrace.fleetsim.fleet.fleet import SimulatedFleet
from tailrace.fleetsim.fleet.pools import ReplicaPool, WeightCosts
from tailrace.fleetsim.fleet.quantities import (
    failures,
    needed,
    parts,
    ranker,
    samples,
    scoring_pools,
    simulated_faults,
    warm_up,
    with_environments,
)
from tailrace.fleetsim.hardware.devices import price_per_hour
from tailrace.fleetsim.profile.machine import MachineProfile, load_machine
from tailrace.fleetsim.profile.workload import MeasuredWorkload
from tailrace.pipeline.config.models import RunConfig
from tailrace.pipeline.run.build import build_spec
from tailrace.trajstore import MixOrder


@dataclass(frozen=True, slots=True)
class ProfiledFleet(SimulatedFleet):
    """A fleet on a machine that was measured.

    Args:
        block_tokens: tokens in a block of the KV cache.
    """

    block_tokens: int = 1

    def engine(self, now: float, pool: ReplicaPool, tp: int | None = None) -> ModelledEngine:
        """An empty engine for a replica."""
        decode, prefill = pool.costs(tp or pool.tp)
        engine = PagedEngine(
            decode,
            prefill,
            max_running=pool.rollout.max_running,
            start_s=now,
        )
        engine.block_tokens = self.block_tokens
        return engine


def profiled_fleet(config: RunConfig, table: FleetConfig, *, seed: int) -> SimulatedFleet:
    """The fleet of a configuration on the machine that ``fleet.profile`` names.

    Evaluations occupy replicas, as in a real run. Response lengths are the profile's unless the configuration has its own
    workload.

    Raises:
        ProfileError: the profile does not exist.
        FleetError: the configuration cannot run on that machine.
    """
    assert table.profile is not None
    machine = load_machine(table.profile)
    _check(config, machine)
    spec = build_spec(config)
    _check_sizes(spec, machine)
    own = table.workload.build(seed, config.rollout.max_tokens) if table.workload is not None else None
    workload = own or measured_workload(config, machine, seed)
    spec = with_environments(spec, workload)
    gpus = 0 if machine.sharing is not None else config.rollout.replicas + config.trainer.processes
    counts = {machine.name: gpus} if gpus else {}
    return ProfiledFleet(
        spec=spec,
        workload=workload,
        pools=(replica_pool(config, machine),),
        training=training_cost(machine, config.trainer.processes),
        delays=delays(machine),
        samples=samples(spec),
        needed=needed(spec),
        parts=parts(spec),
        data_s=machine.training.batch_s,
        gpus=gpus,
        devices=counts,
        price_per_hour=price_per_hour(counts, table.prices),
        goal=table.goal or Goal(steps=spec.steps),
        cores=free_cores(machine),
        replica_cores=machine.sharing.replica_cores if machine.sharing is not None else 1.0,
        trainer_cores=(machine.sharing.trainer_cores if machine.sharing is not None else 1.0)
        * config.trainer.processes,
        warm_up=warm_up(table, spec),
        failures=failures(table, 1, 1, seed),
        scoring=scoring_pools(table, config.reward),
        ranker=ranker(table, config),
        relays=config.relay.count,
        faults=simulated_faults(config),
        description=describe(config, machine),
        block_tokens=machine.decode.block_tokens,
    )


def measured_workload(config: RunConfig, machine: MachineProfile, seed: int) -> MeasuredWorkload:
    """The profile's workload, with its sources in the configuration's order.

    Raises:
        FleetError: the configuration mixes other sources than the profile.
    """
    part, shares = machine.workload, config.task.shares
    if len(shares) > 1 and sorted(set(part.sources)) != list(range(len(shares))):
        raise FleetError(
            f"found {len(shares)} sources of prompts and a profile of {len(set(part.sources)) or 1}, expected one that was "
            "measured with this configuration: tailrace profile"
        )
    order = MixOrder(shares, shuffle_seed=config.seed) if len(shares) > 1 else None
    return MeasuredWorkload(part, seed=seed, max_tokens=config.rollout.max_tokens, order=order)


def replica_pool(config: RunConfig, machine: MachineProfile) -> ReplicaPool:
    """The replicas: all are alike."""
    part = machine.decode
    return ReplicaPool(
        decode=DecodeCost.fitted(part.k1, part.k2, part.k3, part.k4, part.kv_capacity_tokens),
        prefill=PrefillCost.fitted(machine.prefill.per_token_s, 0.0, machine.prefill.per_trajectory_s),
        weights=weights(config, machine),
        rollout=rollout_fleet(config, machine),
        replicas=config.rollout.replicas,
    )


def training_cost(machine: MachineProfile, processes: int = 1) -> TrainingCost:
    """The cost of an update. This trainer prepares no experience, since log-probabilities come from the engine.

    Args:
        processes: of the trainer, each on cores or a device as one was measured with. They divide the tokens of a batch evenly;
            what they send each other is not counted.
    """
    part = machine.training
    return TrainingCost.fitted(
        part.per_token_s / processes,
        part.per_square_token_s / processes,
        backward=0.0,
        passes=0.0,
        optimizer_s=part.fixed_s,
    )


def weights(config: RunConfig, machine: MachineProfile) -> WeightCosts:
    """The cost of publishing and pulling a version. The trainer also stalls for the checkpoint taken at the same time."""
    stall_s = machine.weights.publish_s + machine.delays.checkpoint_s / config.checkpoint.every
    return WeightCosts(stall_s=stall_s, broadcast_s=machine.weights.visible_s, pull_s=machine.weights.pull_s)


def rollout_fleet(config: RunConfig, machine: MachineProfile) -> RolloutFleet:
    """The replicas."""
    most = config.rollout.options.get("max_num_seqs") or machine.decode.max_running
    return RolloutFleet(
        device=machine.name,
        gpus=config.rollout.replicas,
        max_running=most,
        start_s=machine.delays.start_replica_s,
        restart_s=machine.delays.start_replica_s,
    )


def delays(machine: MachineProfile) -> DelayConfig:
    """The delays that are not computing."""
    part = machine.delays
    return DelayConfig(
        reward_s=part.score_s,
        report_s=part.report_s,
        snapshot_s=part.snapshot_s,
        checkpoint_s=part.durable_s,
        route_s=part.route_s,
        trainer_restart_s=part.start_trainer_s,
    )


def free_cores(machine: MachineProfile) -> float | None:
    """Number of cores left for replicas and trainer, without the share of other processes; None if not shared."""
    return None if machine.sharing is None else machine.sharing.cores * (1.0 - machine.sharing.others)


def describe(config: RunConfig, machine: MachineProfile) -> str:
    """The fleet in words."""
    where = f"{machine.sharing.cores} shared cores" if machine.sharing is not None else "devices of their own"
    return f"{config.rollout.replicas} replicas and a trainer on {machine.name}: {where}"


def _check(config: RunConfig, machine: MachineProfile) -> None:
    if config.rollout.max_tokens > machine.decode.kv_capacity_tokens:
        raise FleetError(
            f"found rollout.max_tokens = {config.rollout.max_tokens}, but the KV cache of a replica on {machine.name} has "
            f"room for {machine.decode.kv_capacity_tokens} tokens; expected at most that"
        )


def _check_sizes(spec: PipelineSpec, machine: MachineProfile) -> None:
    """Refuse a policy that resizes replicas: a profile has the costs of the one size that was measured."""
    policy = spec.provisioning
    growth = policy.growth()
    start = spec.tp if growth is None else growth.spans or spec.tp
    sizes = policy.sizes_of_replicas() or (start,)
    if set(sizes) - {spec.tp}:
        raise FleetError(
            f"keys 'pipeline.provisioning' and 'fleet.profile': found {type(spec.provisioning).__name__}, whose replicas span "
            f"{' or '.join(map(str, sizes))} devices, and the profile {machine.name!r}, measured with one size; expected "
            "provisioning that resizes none, such as 'static', or with devices_per_machine = 1, or fleet.model in place of "
            "the profile"
        )


# An engine that counts its KV cache in blocks, as vLLM does. Policies see that count, and short contexts fill few blocks.


class PagedEngine(ModelledEngine):
    """An engine with a block size. `block_tokens` is set once, right after its creation."""

    __slots__ = ("block_tokens",)
    block_tokens: int

    @property
    def kv_share(self) -> float:
        """Share of the KV cache in use, counted in whole blocks."""
        block = self.block_tokens
        if block == 1:
            return super().kv_share
        done = self._steps_done(self._engine_s(self._now_s))
        step = self._step + done
        # A seat has minus the step at which its turn ends, which gives the number of tokens left in the turn.
        blocks = sum(-(-(seat[2].final + seat[0] + step) // block) for seat in self._seats)
        return min(1.0, blocks * block / self._capacity)
