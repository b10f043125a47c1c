"""Builds a fleet from a machine's profile, to simulate a pipeline on the machine that was measured.

Its workload draws from groups of a real model; prompt, lengths and rewards of a group stay together. Changes while the model
learns are applied on top: how often a group has a signal (rewards that differ), and how long responses are.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

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
from tailrace.fleetsim.profile.fit_workload import Group, has_signal
from tailrace.fleetsim.profile.machine import MachineProfile, WorkloadPart, load_machine
from tailrace.fleetsim.workload.lengths import Spread
from tailrace.fleetsim.workload.random_numbers import draws, seed_of
from tailrace.fleetsim.workload.workload import Description, ModelledSample, Turns, Workload
from tailrace.pipeline.config.models import RunConfig
from tailrace.pipeline.config.parallelism import MeasuredSize, read_parallelism
from tailrace.pipeline.run.build import build_spec
from tailrace.pipeline.run.pools import tensor_parallel
from tailrace.trajstore import MixOrder


class _Drawn(NamedTuple):
    """A group, the seconds of its scores, and the turns of its samples."""

    group: Group
    score_s: tuple[float, ...]
    turns: tuple[Turns, ...]


class MeasuredWorkload(Workload):
    """Groups of a profile.

    Args:
        part: the profile's workload.
        seed: any whole number.
        max_tokens: most tokens of a response; longer ones are cut.
        order: which source each prompt is of, where prompts are mixed; a group is then one of its source.
    """

    def __init__(self, part: WorkloadPart, *, seed: int, max_tokens: int, order: MixOrder | None = None) -> None:
        self.seed, self.max_tokens, self._order = seed, max_tokens, order
        self._signal, self._length = part.signal, part.length
        sources = part.sources if order is not None else (0,) * len(part.groups)
        scores = part.score_s or [(0.0,) * len(group[2]) for group in part.groups]
        turns = part.turns or [tuple(((tokens, 0.0),) for tokens in group[2]) for group in part.groups]
        self._has_turns = bool(part.turns)
        self._pools: dict[tuple[int, bool], list[_Drawn]] = {}  # by source, and by whether there is a signal
        for group, source, seconds, said in zip(part.groups, sources, scores, turns, strict=True):
            self._pools.setdefault((source, has_signal(group)), []).append(_Drawn(group, seconds, said))

    @property
    def turns(self) -> bool:
        return self._has_turns

    def group(self, index: int, samples: int, version: int = 0, draw: int | None = None) -> list[ModelledSample]:
        """Samples of a recorded group. If more are asked for than it has, they repeat in order.

        Another draw of a prompt picks among its samples.
        """
        _, uniforms = draws(self.seed, index, 2)
        source = 0 if self._order is None else self._order.pool(index if index >= 0 else -1 - index)
        signal = uniforms[0] < self._share(version)
        pool = self._pools.get((source, signal)) or self._pools[source, not signal]
        (made_by, prompt, lengths, rewards), seconds, turns = pool[int(uniforms[1] * len(pool))]
        factor = math.exp(self._length.at(version) - self._length.at(made_by))
        seed = seed_of(self.seed, index, draw)
        again = draws(seed, index, samples)[1] if seed != self.seed else None
        group = []
        for position in range(samples):
            at = position % len(lengths) if again is None else int(again[position] * len(lengths))
            group.append(ModelledSample(prompt, grown(turns[at], factor, self.max_tokens), rewards[at], seconds[at]))
        return group

    def describe(self, version: int = 0) -> Description:
        share = self._share(version)
        pools = [
            [one for (_, signal), pool in self._pools.items() if signal == has for one in pool] for has in (True, False)
        ]
        drawn = [
            (one, weight / len(pool)) for pool, weight in zip(pools, (share, 1.0 - share), strict=True) for one in pool
        ]
        weighted = [(one.group, weight) for one, weight in drawn]
        length = self._length.at(version)
        prompts = [(float(prompt), weight) for (_, prompt, _, _), weight in weighted]
        responses = [
            (min(float(self.max_tokens), math.exp(length - self._length.at(made_by)) * tokens), weight / len(lengths))
            for (made_by, _, lengths, _), weight in weighted
            for tokens in lengths
        ]
        note = f"drawn from {len(weighted):,} groups of a profile; {share:.0%} of groups have a signal at version {version}"
        said = [(turns, weight / len(one.turns)) for one, weight in drawn for turns in one.turns]
        calls = sum(weight * (len(turns) - 1) for turns, weight in said)
        waited_s = sum(weight * sum(seconds for _, seconds in turns) for turns, weight in said)
        spreads = _spread(prompts, None), _spread(responses, self.max_tokens)
        return Description(*spreads, calls=calls, environment_s=waited_s, notes=(note,))

    def _share(self, version: int) -> float:
        """Share of groups with a signal."""
        signals = {signal for _, signal in self._pools}
        if len(signals) == 1:
            return 1.0 if True in signals else 0.0
        return 1.0 / (1.0 + math.exp(-self._signal.at(version)))


def grown(turns: Turns, factor: float, most: int) -> Turns:
    """Turns with so many times their tokens, each at least one, cut after `most` tokens. A turn that is cut is the last."""
    if factor == 1.0 and sum(tokens for tokens, _ in turns) <= most:
        return turns
    kept: list[tuple[int, float]] = []
    left = most
    for tokens, seconds in turns:
        longer = max(1, round(factor * tokens))
        if longer >= left:
            return (*kept, (left, 0.0))
        kept.append((longer, seconds))
        left -= longer
    return (*kept[:-1], (kept[-1][0], 0.0))


def _spread(values: Sequence[tuple[float, float]], cap: int | None) -> Spread:
    ordered = sorted(values)

    def at(share: float) -> float:
        seen = 0.0
        for value, weight in ordered:
            seen += weight
            if seen >= share:
                return value
        return ordered[-1][0]

    mean = sum(value * weight for value, weight in ordered)
    cut = sum(weight for value, weight in ordered if cap is not None and value >= cap)
    return Spread(mean, at(0.5), at(0.99), ordered[-1][0], cut)


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
    sizes = measured_sizes(config)
    _check_sizes(spec, machine, sizes)
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
    order = MixOrder(shares, shuffle_seed=config.shuffle_seed) if len(shares) > 1 else None
    return MeasuredWorkload(part, seed=seed, max_tokens=config.rollout.max_tokens, order=order)


def measured_sizes(config: RunConfig) -> dict[int, MeasuredSize]:
    """Replicas of other sizes, as `rollout.parallelism` has them.

    Raises:
        ConfigError: the file cannot be read.
    """
    path = config.rollout.parallelism
    return {} if path is None else {size.tp: size for size in read_parallelism(path).sizes}


def replica_pool(config: RunConfig, machine: MachineProfile) -> ReplicaPool:
    """The replicas: all are alike, until some are resized."""
    part = machine.decode
    own = tensor_parallel(config.rollout.options)
    return ReplicaPool(
        decode=DecodeCost.fitted(part.k1, part.k2, part.k3, part.k4, part.kv_capacity_tokens),
        prefill=PrefillCost(machine.prefill.per_token_s, 0.0, machine.prefill.per_trajectory_s),
        weights=weights(config, machine),
        rollout=rollout_fleet(config, machine),
        replicas=config.rollout.replicas,
        tp=own,
        sized={
            tp: (
                DecodeCost.fitted(size.k1, size.k2, size.k3, size.k4, size.kv_tokens or part.kv_capacity_tokens),
                PrefillCost(size.prefill_token_s, 0.0, size.prefill_sequence_s),
            )
            for tp, size in measured_sizes(config).items()
            if tp != own
        },
    )


def training_cost(machine: MachineProfile, processes: int = 1) -> TrainingCost:
    """The cost of an update. This trainer prepares no experience, since log-probabilities come from the engine.

    Args:
        processes: of the trainer, each on cores or a device as one was measured with. They divide the tokens of a batch evenly;
            what they send each other is not counted.
    """
    part = machine.training
    return TrainingCost(
        part.per_token_s / processes,
        part.per_square_token_s / processes,
        backward=0.0,
        passes=0.0,
        optimizer_s=part.fixed_s,
    )


def weights(config: RunConfig, machine: MachineProfile) -> WeightCosts:
    """The cost of publishing and pulling a version. The trainer also stalls for the checkpoint taken at the same time.

    A hop between replicas takes as long as the one that was measured, from the trainer to its relay.
    """
    stall_s = machine.weights.publish_s + machine.delays.checkpoint_s / config.checkpoint.every
    visible_s, pull_s = machine.weights.visible_s, machine.weights.pull_s
    return WeightCosts(stall_s=stall_s, broadcast_s=visible_s, pull_s=pull_s, peer_s=visible_s)


def rollout_fleet(config: RunConfig, machine: MachineProfile) -> RolloutFleet:
    """The replicas."""
    most = config.rollout.options.get("max_num_seqs") or machine.decode.max_running
    path = config.rollout.parallelism
    replicas = RolloutFleet(
        device=machine.name,
        gpus=config.rollout.replicas,
        max_running=most,
        start_s=machine.delays.start_replica_s,
        restart_s=machine.delays.start_replica_s,
    )
    return replicas if path is None else replicas.model_copy(update={"resize_s": read_parallelism(path).resize_s})


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


def _check_sizes(spec: PipelineSpec, machine: MachineProfile, sizes: Collection[int]) -> None:
    """Refuse a policy that gives replicas sizes of which nobody has measured the costs."""
    policy = spec.provisioning
    growth = policy.growth()
    start = spec.tp if growth is None else growth.spans or spec.tp
    wanted = policy.sizes_of_replicas() or (start,)
    if set(wanted) - {spec.tp, *sizes}:
        raise FleetError(
            f"keys 'pipeline.provisioning' and 'fleet.profile': found {type(spec.provisioning).__name__}, whose replicas span "
            f"{' or '.join(map(str, wanted))} devices, and the profile {machine.name!r}, measured with one size; expected the "
            "others in a file `rollout.parallelism` (tailrace profile --parallelism), provisioning that resizes none, such as "
            "'static', or with devices_per_machine = 1, or fleet.model in place of the profile"
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
