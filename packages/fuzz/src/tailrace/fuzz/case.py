"""A fuzz case: everything that one run in virtual time depends on, as a small JSON file that a person can read."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tailrace.contracts import Facts, StepCosts, TailraceError
from tailrace.controller.spec import EvaluationPlan, PipelineSpec, RolloutPool
from tailrace.fleetsim.cost.decode import DecodeCost, PrefillCost
from tailrace.fleetsim.cost.training import TrainingCost
from tailrace.fleetsim.cost.weights import HandOverCost
from tailrace.fleetsim.fleet.config import DelayConfig, RolloutFleet
from tailrace.fleetsim.fleet.fleet import SimulatedFleet
from tailrace.fleetsim.fleet.pools import ReplicaPool, WeightCosts
from tailrace.fleetsim.fleet.quantities import parts, samples
from tailrace.fleetsim.workload.config import WorkloadConfig
from tailrace.fuzz.errors import CaseError
from tailrace.fuzz.faults import BreakKind, CaseFault, Seconds
from tailrace.fuzz.policies import NONE, POLICIES, Policies, make_policy
from tailrace.pipeline.config.loading import explain
from tailrace.pipeline.config.models import PipelineConfig
from tailrace.pipeline.config.policies import build_policy, check_surplus

Positive = Annotated[int, Field(gt=0)]
Share = Annotated[float, Field(ge=0, le=1)]
SIZES = (2, 4)  # devices of replicas that have been resized
SITE = "west"  # of replicas that are not at the trainer's
STILL_S = 60.0  # without a token, after which an engine with work counts as down, by default
MOST_CALLS = 50  # of an environment whose configuration sets no limit


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Costs(_Strict):
    """Seconds of computing.

    Args:
        k1, k2, k3, k4: of a decode step, as in `CostModelConfig`; policies that plan with costs are given the same.
        prefill_s: for each token.
        train_s: of a forward pass, for each token.
        optimizer_s: of an optimizer step.
        data_s: to move a batch to the trainer.
    """

    k1: Seconds = 1e-6
    k2: Seconds = 4e-3
    k3: Seconds = 4e-4
    k4: Seconds = 8e-3
    prefill_s: Seconds = 1e-4
    train_s: Seconds = 5e-4
    optimizer_s: Seconds = 0.1
    data_s: Seconds = 0.1


class WeightsCase(_Strict):
    """Seconds of moving weights; `keep` newest versions can be pulled, older ones are gone, 0 for no limit."""

    stall_s: Seconds = 0.1
    broadcast_s: Seconds = 0.2
    pull_s: Seconds = 0.2
    keep: Annotated[int, Field(ge=0)] = 0


class ReplicaCase(_Strict):
    """One replica: as in `RolloutFleet`, with the tokens that its KV cache holds."""

    kv_capacity_tokens: Annotated[int, Field(gt=1)]
    max_running: Positive = 8
    prefix_cached: Share = 0.0
    start_s: Seconds = 0.0
    restart_s: Seconds = 2.0


class MessagesCase(_Strict):
    """What happens to messages between the controller and the members.

    Args:
        delay_s: each takes up to so long, its own time. Commands to replicas overtake each other; reports keep their order.
        repeat: share of commands, reports of finished trajectories and rewards that arrive twice.
    """

    delay_s: Seconds = 0.0
    repeat: Share = 0.0


class EvaluationCase(_Strict):
    """Held-out problems, and the versions between evaluations."""

    size: Annotated[int, Field(ge=0)] = 0
    every: Annotated[int, Field(ge=0)] = 0


class EnvironmentsCase(_Strict):
    """The environments of a workload that has some.

    Args:
        members: members of the role.
        sessions: sessions that each may have at work; None for no limit.
        breaks: share of calls that fail, with nonsense or too late.
        lost: share of sessions that cannot be had again after their member is gone.
        unanswered: share of calls of which nothing is heard any more, until the member's deadline.
        ends: share of trajectories that the environment ends, with an answer to their last turn.
    """

    members: Positive = 1
    sessions: Positive | None = None
    breaks: Share = 0.0
    lost: Share = 0.0
    unanswered: Share = 0.0
    ends: Share = 0.0


class Case(_Strict):
    """One case.

    Args:
        seed: of lengths, rewards and what messages do.
        pipeline: as in a configuration.
        max_tokens: of a response.
        scoring_failures: share of scorings that fail.
        unscored: share of scorings of which nothing is heard any more, until the scorer's deadline.
        drops_s: the store takes up to so long to drop the trajectories of an abort, its own time for each.
        refusals: share of prompts that engines refuse.
        predictions: share of prompts that a ranker has a length for: late, twice, and right by chance; 0: there is no ranker.
        far: replicas at another site than the trainer's, a pool of their own with smaller batches; of several relays the last
            one stands there too.
        peers: whether replicas pull from each other.
        replica_versions: versions that a replica generates with at once.
        fence: whether a version is sealed until its checkpoint is durable.
        newer_weights: whether a trainer that restarts takes published weights that are newer than its checkpoint.
        cells: of the trainer.
        colocated: whether they stand on the devices of the replicas.
        judge_cell: the one of them beside a judge, whose devices are not lent.
        machines: over which members are placed, and which may die; 0: they have none.
        hybrids: where they do, replicas on whose devices they stand: the others are a pool of their own; 0: all of them.
        step_s: deadline of a training step, which a healthy one may exceed; None: it exceeds none.
    """

    seed: int
    pipeline: PipelineConfig
    replicas: Positive
    relays: Positive = 1
    replica: ReplicaCase
    costs: Costs = Costs()
    weights: WeightsCase = WeightsCase()
    delays: DelayConfig
    workload: WorkloadConfig
    max_tokens: Positive
    evaluation: EvaluationCase = EvaluationCase()
    checkpoint_every: Positive = 1
    full_checkpoint_every: Positive = 1
    peers: bool = False
    replica_versions: Positive = 1
    fence: bool = False
    newer_weights: bool = False
    scoring_attempts: Positive = 3
    failed_groups_limit: Positive = 1_000
    scoring_failures: Share = 0.0
    unscored: Share = 0.0
    drops_s: Seconds = 0.0
    refusals: Share = 0.0
    predictions: Share = 0.0
    far: Annotated[int, Field(ge=0)] = 0
    cells: Positive = 1
    colocated: bool = False
    judge_cell: Annotated[int, Field(ge=0)] | None = None
    machines: Annotated[int, Field(ge=0)] = 0
    hybrids: Annotated[int, Field(ge=0)] = 0
    environments: EnvironmentsCase = EnvironmentsCase()
    messages: MessagesCase = MessagesCase()
    step_s: Annotated[float, Field(gt=0)] | None = None
    faults: tuple[CaseFault, ...] = ()

    @property
    def hurries(self) -> bool:
        """Whether healthy members may be taken for down, since their deadlines are shorter than what they do."""
        given = self.pipeline.detection.options
        return self.step_s is not None or "phase_s" in given or given.get("device_s", STILL_S) < STILL_S

    def refuses(self, prompt: int) -> bool:
        """Whether engines refuse a prompt."""
        return self.refusals > 0 and Random(f"refused {self.seed} {prompt}").random() < self.refusals

    def ends_in_environment(self, trajectory: str) -> bool:
        """Whether the environment of a trajectory ends it."""
        return Random(f"ended {self.seed} {trajectory}").random() < self.environments.ends

    # ---- files ----------------------------------------------------------------------------------------------------

    @classmethod
    def read(cls, path: Path) -> Case:
        """The case in a file.

        Raises:
            CaseError: one line that says what is wrong with the file.
        """
        try:
            return cls.model_validate_json(path.read_text())
        except OSError as error:
            raise CaseError(f"{path}: {error.strerror}; expected a case that `tailrace fuzz` saved") from error
        except ValidationError as error:
            first = error.errors()[0]
            raise CaseError(f"{path}: {explain(cls, [str(part) for part in first['loc']], first)}") from None

    def to_json(self) -> str:
        """The case as a file's text: one line for each part that fits into one."""
        plain: dict[str, Any] = self.model_dump(mode="json", exclude_none=True)
        plain["faults"] = [fault.model_dump(mode="json", exclude_defaults=True) for fault in self.faults]
        return _readable(plain) + "\n"

    @property
    def size(self) -> str:
        """How large it is, for a person."""
        pipeline = self.pipeline
        return (
            f"{len(self.faults)} faults, {pipeline.steps} steps of {pipeline.prompts_per_step} x "
            f"{pipeline.samples_per_prompt}, {self.replicas} replicas"
        )

    # ---- what runs ------------------------------------------------------------------------------------------------

    def spec(self, policies: Policies = NONE) -> PipelineSpec:
        """The policies and quantities.

        Args:
            policies: those of yours that take part, by axis.

        Raises:
            CaseError: a policy is unknown, or does not take its options.
        """
        pipeline, evaluation = self.pipeline, self.evaluation
        facts = self.facts
        try:
            made: dict[str, Any] = {}
            for axis in sorted(POLICIES, key=lambda axis: axis != "batching"):
                made[axis] = make_policy(axis, getattr(pipeline, axis), facts, policies)
                if axis == "batching":
                    facts = replace(facts, surplus_groups=made[axis].surplus_groups)
            check_surplus(made["batching"], made["admission"])
            if pipeline.eviction is not None:
                made["eviction"] = build_policy("eviction", pipeline.eviction)
        except TailraceError as error:
            raise CaseError(str(error)) from error
        return PipelineSpec(
            **made,
            steps=pipeline.steps,
            batch_groups=pipeline.prompts_per_step,
            replica_batch=pipeline.prompts_per_replica * pipeline.samples_per_prompt,
            buffer_groups=pipeline.buffer_prompts,
            cells=self.cells,
            colocated=self.colocated,
            judge_cell=self.judge_cell,
            cell_devices=max(1, (min(self.hybrids, self.replicas) or self.replicas) // self.cells),
            cycle_s=pipeline.cycle_s,
            checkpoint_every=self.checkpoint_every,
            full_checkpoint_every=self.full_checkpoint_every,
            fence=self.fence,
            newer_weights=self.newer_weights,
            scoring_attempts=self.scoring_attempts,
            failed_groups_limit=self.failed_groups_limit,
            fits_costs=pipeline.steps % 2 == 1,  # in place of those that it has
            ranker=self.predictions > 0,
            pools=self.pools,
            peers=self.peers,
            replica_versions=self.replica_versions,
            relay_sites=self.relay_sites,
            machines=tuple(map(str, range(self.machines))),
            environments=self.environments.members if self.workload.environment else 0,
            environment_sessions=self.environments.sessions,
            evaluation=EvaluationPlan(evaluation.size, evaluation.every, first=("greedy",), last=("greedy",)),
        )

    @property
    def facts(self) -> Facts:
        """What its policies may ask for."""
        pipeline, costs = self.pipeline, self.costs
        return Facts(
            prompts=pipeline.prompts_per_step,
            samples=pipeline.samples_per_prompt,
            replicas=self.replicas,
            slots=pipeline.prompts_per_replica * pipeline.samples_per_prompt,
            max_tokens=self.max_tokens,
            shuffle_seed=self.seed,
            silent_s=self.delays.hang_s,
            costs=StepCosts(costs.k1, costs.k2, costs.k3, costs.k4),
        )

    @property
    def pools(self) -> tuple[RolloutPool, ...]:
        """The pools of replicas; empty if all are alike."""
        far, samples = min(self.far, self.replicas - 1), self.pipeline.samples_per_prompt
        prompts = self.pipeline.prompts_per_replica
        if self.colocated and 0 < self.hybrids < self.replicas:
            hybrid = RolloutPool("hybrid", self.hybrids, replica_batch=prompts * samples, hybrid=True, standby=False)
            return hybrid, RolloutPool("standalone", self.replicas - self.hybrids, replica_batch=prompts * samples)
        if not far:
            return ()
        near = RolloutPool("near", self.replicas - far, replica_batch=prompts * samples)
        return near, RolloutPool("far", far, SITE, replica_batch=max(1, prompts // 2) * samples, standby=False)

    @property
    def relay_sites(self) -> tuple[str, ...]:
        """The site of each relay; empty if all are at the trainer's."""
        there = any(pool.site for pool in self.pools) and self.relays > 1
        return ("",) * (self.relays - 1) + (SITE,) if there else ()

    def fleet(self, policies: Policies = NONE) -> SimulatedFleet:
        """What it runs on, pipeline included.

        Raises:
            TailraceError: something cannot be.
        """
        costs, spec = self.costs, self.spec(policies)
        return SimulatedFleet(
            spec=spec,
            workload=self.workload.build(self.seed, self.max_tokens),
            pools=(self._pool(),),
            training=TrainingCost(costs.train_s, optimizer_s=costs.optimizer_s),
            delays=self.delays,
            samples=samples(spec),
            parts=parts(spec),
            data_s=costs.data_s,
            gpus=self.replicas + 1,
            relays=self.relays,
            hand_over=self._hand_over(),
        )

    def _hand_over(self) -> HandOverCost:
        """What moves when devices change hands; it follows from the seed, apart from all that is drawn."""
        if not self.colocated:
            return HandOverCost()
        numbers = Random(f"hand over {self.seed}")
        parameters, gradients, optimizer, engine = (numbers.choice((0.0, numbers.uniform(0.05, 0.8))) for _ in range(4))
        return HandOverCost(
            parameters, gradients, optimizer, engine=engine, level=numbers.choice((0, 1, 2)), bandwidth=1.0
        )

    def _pool(self) -> ReplicaPool:
        costs, replica = self.costs, self.replica
        return ReplicaPool(
            decode=DecodeCost.fitted(costs.k1, costs.k2, costs.k3, costs.k4, replica.kv_capacity_tokens),
            prefill=PrefillCost(costs.prefill_s),
            weights=WeightCosts(
                self.weights.stall_s, self.weights.broadcast_s, self.weights.pull_s, self.weights.pull_s
            ),
            rollout=RolloutFleet(
                max_running=replica.max_running,
                prefix_cached=replica.prefix_cached,
                start_s=replica.start_s,
                restart_s=replica.restart_s,
                resize_s=replica.restart_s,
            ),
            replicas=self.replicas,
            sized={size: self._costs_of(size) for size in SIZES},
        )

    def _costs_of(self, tp: int) -> tuple[DecodeCost, PrefillCost]:
        costs, capacity = self.costs, tp * self.replica.kv_capacity_tokens
        decode = DecodeCost.fitted(costs.k1 / tp, costs.k2 / tp, costs.k3 / tp, costs.k4 * 1.1, capacity)
        return decode, PrefillCost(costs.prefill_s / tp)

    def patience_s(self, samples: int) -> float:
        """Nothing is waited for longer than this: each wait that the case can bring, one after the other, twice over.

        Args:
            samples: trajectories launched for a prompt.
        """
        costs, delays = self.costs, self.delays
        step_s = (
            costs.k4 + max(costs.k2, costs.k3 * self.replica.max_running) + costs.k1 * self.replica.kv_capacity_tokens
        )
        slowest = min((fault.speed for fault in self.faults), default=1.0)
        prompts = 4 * self.replica.kv_capacity_tokens
        alone_s = (self.max_tokens * step_s + prompts * costs.prefill_s) / slowest + self._environment_s
        batch = self.pipeline.prompts_per_step * samples * (self.max_tokens + 64)
        train_s = (4 * batch * costs.train_s + 8 * costs.optimizer_s + costs.data_s) / slowest
        rounds = -(-self.pipeline.prompts_per_replica * samples // self.replica.max_running) + 1
        restarts_s = delays.detect_s + delays.hang_s + self.replica.restart_s + delays.trainer_restart_s
        moving_s = 10.0 + self.weights.stall_s + self.weights.broadcast_s + self.weights.pull_s + delays.checkpoint_s
        if self.peers:  # it may be the last that finds a source
            moving_s += 2 * self.replicas * self.weights.pull_s
        if any(fault.kind is BreakKind.STALL for fault in self.faults):
            restarts_s += STILL_S + 30 * step_s  # what it takes to notice a still engine
        if (
            self.pipeline.detection.name != "role-aware"
        ):  # it notices what hangs after its own window, or once all are quiet
            restarts_s += max(STILL_S, self.pipeline.detection.options.get("device_s", 0.0))
        waits_s = (
            2 * delays.reward_s
            + 4 * self.messages.delay_s
            + 20 * self.drops_s
            + max((f.for_s for f in self.faults), default=0.0)
        )
        return 10.0 + 2 * (rounds * alone_s + train_s + restarts_s + moving_s + waits_s + self.replica.start_s)

    @property
    def call_s(self) -> float:
        """Seconds in which an environment that has calls answers one of them, or is taken for silent."""
        environment = self.workload.environment
        longest_s = 0.0 if environment is None else environment.latency.cap or 10 * environment.latency.median
        return 5.0 + 2 * longest_s + 4 * self.messages.delay_s

    @property
    def _environment_s(self) -> float:
        environment = self.workload.environment
        if environment is None:
            return 0.0
        calls, latency = environment.calls, environment.latency
        most = calls.max if calls.max is not None else max(calls.counts or {MOST_CALLS: 1.0})
        most *= 2 + 4 * (self.environments.unanswered > 0)  # a call takes up to twice what was drawn, or is made anew
        return self.call_s + most * (latency.cap if latency.cap is not None else 10 * latency.median)


def _readable(value: Any, indent: str = "") -> str:
    text = json.dumps(value)
    if not isinstance(value, dict | list) or (indent and len(text) + len(indent) <= 118):
        return text
    inner = indent + " "
    if isinstance(value, dict):
        parts = [f"{inner}{json.dumps(key)}: {_readable(part, inner)}" for key, part in value.items()]
    else:
        parts = [inner + _readable(part, inner) for part in value]
    if not parts:
        return text
    opened, closed = "{}" if isinstance(value, dict) else "[]"
    return f"{opened}\n" + ",\n".join(parts) + f"\n{indent}{closed}"
