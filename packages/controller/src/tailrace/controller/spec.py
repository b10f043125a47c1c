"""A pipeline: one policy on each of the eight axes, and the quantities that they use."""

from __future__ import annotations

from dataclasses import dataclass, field

from tailrace.contracts import (
    BASES,
    AdmissionPolicy,
    BatchingPolicy,
    DetectionPolicy,
    Eviction,
    PluginError,
    ProvisioningPolicy,
    RecoveryPolicy,
    RelocationPolicy,
    RoutingPolicy,
    Sampler,
    SyncPolicy,
    TrainingPolicy,
    check_policy,
)
from tailrace.controller.errors import PolicyError
from tailrace.faulttol import RoleAware


@dataclass(frozen=True, slots=True)
class EvaluationPlan:
    """When to evaluate and how.

    Args:
        size: number of held-out problems.
        every: batches between evaluations; 0: evaluate only at the start and at the end.
        modes: decoding modes of every evaluation.
        first: further modes at the start (the controls of the warm start).
        last: further modes at the end.
        sources: name of each source of the problems, and how many problems it has: those of the first source come first.
            Empty where all are of one source.
    """

    size: int = 0
    every: int = 0
    modes: tuple[str, ...] = ("sampled",)
    first: tuple[str, ...] = ()
    last: tuple[str, ...] = ()
    sources: tuple[tuple[str, int], ...] = ()

    def source(self, problem: int) -> str:
        """The source of a problem; empty where all are of one source."""
        for name, count in self.sources:
            if problem < count:
                return name
            problem -= count
        return ""


_NOT_BOTH = {
    "fence": "behind a fence no published weights are newer than the newest checkpoint",
    "deterministic": "a trainer with newer weights than its optimizer's state does not end on the same bits",
}
_LEAST = {
    "steps": 0,
    "batch_groups": 1,
    "replica_batch": 1,
    "tp": 1,
    "open_batches": 1,
    "cells": 1,
    "checkpoint_every": 1,
    "full_checkpoint_every": 1,
}
AXES = ("admission", "batching", "routing", "sync", "relocation", "training", "provisioning", "recovery")


@dataclass(frozen=True, slots=True)
class RolloutPool:
    """Replicas that are alike: of one engine configuration, at one site.

    Args:
        name: its name, unique in a run.
        count: replicas at the start.
        site: its site; empty for the trainer's.
        tp: devices that each replica's engine spans, until it is resized.
        replica_batch: most trajectories that each replica generates at once.
        hybrid: whether they stand on the trainer's devices (RobustRL, section 2.1), where trainer and replicas share some.
        standby: whether the trainer could use their machines: devices of its kind, at its site.
    """

    name: str
    count: int
    site: str = ""
    tp: int = 1
    replica_batch: int = 1
    hybrid: bool = False
    standby: bool = True


@dataclass(frozen=True, slots=True)
class PipelineSpec:
    """The policies and quantities of a `Controller`.

    Args:
        sampler: chooses the complete groups of a batch.
        steps: batches to train on.
        batch_groups: groups in a batch.
        replica_batch: most trajectories that one replica generates at once.
        tp: devices that a replica's engine spans (tensor parallelism), until it is resized.
        buffer_groups: most groups that are open at once, waiting for a replica, generating or waiting for the trainer
            (back-pressure). None: admission's limit, (bound + 1) batches for a bound, or `open_batches`. With `eviction`:
            most complete groups that wait for the trainer.
        open_batches: most batches of groups that are open at once, if neither admission nor `buffer_groups` limits them. It
            limits staleness too, since groups that are generated ahead are trained on later.
        eviction: chooses the complete groups that leave untrained when more than `buffer_groups` wait. Replicas then never
            wait for the trainer. None: replicas are held back instead.
        cells: cells of the trainer, which can each add gradients without the others.
        colocated: whether the trainer's cells stand on the replicas' devices, so that a cell computes alone only on devices
            that are lent to it. With `pools`, on those of the hybrid ones.
        cell_devices: devices on which each cell stands, where `colocated`.
        judge_cell: the cell on one of whose devices a judge has a share. They are not lent within a round, since the round ends
            with its last score. None: no judge shares a device with a cell.
        cycle_s: least seconds between two decisions for changes of load alone; with hundreds of replicas, use 1.
        cycle_trajectories: most trajectories of the pool that one decision looks at. The rest follows in the next ones, so
            that a large backlog does not hold up other decisions.
        checkpoint_every: batches between checkpoints.
        full_checkpoint_every: checkpoints from one with the optimizer's state to the next; those between have weights alone, to
            which the trainer cannot go back. The last step's has it.
        keep_checkpoints: newest checkpoints that the trainer can go back to; if one is damaged, an older one is used.
        keep_checkpoint_bytes: most bytes of checkpoints that are kept; 0: any number. The oldest weights go first, then the
            oldest with full state; the newest two of those stay, and count too.
        fence: whether a version may be pulled only once its checkpoint is durable, so that no replica is ever newer than what
            the trainer can come back to. Every version must then have a checkpoint.
        newer_weights: whether a trainer that restarts takes published weights from relays and replicas, where they are newer
            than its newest checkpoint; the optimizer's state stays that of the checkpoint.
        scoring_attempts: how often a failing verifier is tried before the group is reported as failed.
        failed_groups_limit: number of groups whose verifier failed that ends the run, since the verifier is then wrong, not a
            response; and of groups that engines refused with no complete one between them.
        fits_costs: whether the costs of a decoding step are fitted to what replicas report, for policies that learn them
            (`learns_costs`), since no coefficients were given.
        ranker: whether a ranker predicts the lengths of responses, for policies that use them.
        max_tokens: most tokens of a response, beyond which none is expected to be left; None: not known.
        pools: pools of unequal replicas; empty if all replicas have `tp` and `replica_batch`, at the trainer's site.
        peers: whether replicas offer the versions that they serve, so that others pull from them too, one from each at a time
            (RobustRL, section 5.2.1). They must then say an address as they come up.
        replica_versions: versions that a replica generates with at once: a pull interrupts only what runs under none of the
            newest of them, the one that is pulled included. Above 1, versions are adapters that the engine applies.
        relay_sites: the site of each relay, by its number; empty if all are at the trainer's, as those beyond its end are.
        detection: says who counts as down although its process was not seen to end.
        environments: members of the environment role, which answer the turns of trajectories; 0: each response is one turn.
        environment_sessions: sessions that each of them may have at work before it is given another; None for no limit.
        machine_checks: whether a machine is checked before a member starts on it in place of one that failed.
        machines: names of the machines over which members are placed, in order; empty leaves the choice to the host.
        deterministic: whether groups start only together, when every replica serves the newest version and no evaluation is due
            or runs. What an engine computes in one batch does then not depend on which message came first.

    Raises:
        PolicyError: a number that leaves nothing to do; a fence, but not a checkpoint at every step; newer weights with a
            fence, or where a run is to end on the same bits whatever fails; or a policy that does not inherit the base class of
            its axis.
    """

    admission: AdmissionPolicy
    batching: BatchingPolicy
    routing: RoutingPolicy
    sync: SyncPolicy
    relocation: RelocationPolicy
    training: TrainingPolicy
    provisioning: ProvisioningPolicy
    recovery: RecoveryPolicy
    sampler: Sampler
    steps: int
    batch_groups: int
    replica_batch: int
    tp: int = 1
    buffer_groups: int | None = None
    open_batches: int = 4
    eviction: Eviction | None = None
    cells: int = 1
    colocated: bool = False
    cell_devices: int = 1
    judge_cell: int | None = None
    cycle_s: float = 0.0
    cycle_trajectories: int = 8_192
    checkpoint_every: int = 1
    full_checkpoint_every: int = 1
    keep_checkpoints: int = 2
    keep_checkpoint_bytes: int = 0
    fence: bool = False
    newer_weights: bool = False
    scoring_attempts: int = 3
    failed_groups_limit: int = 64
    evaluation: EvaluationPlan = field(default_factory=EvaluationPlan)
    fits_costs: bool = False
    ranker: bool = False
    max_tokens: int | None = None
    detection: DetectionPolicy = field(default_factory=RoleAware)
    pools: tuple[RolloutPool, ...] = ()
    peers: bool = False
    replica_versions: int = 1
    relay_sites: tuple[str, ...] = ()
    environments: int = 0
    environment_sessions: int | None = None
    machine_checks: bool = False
    machines: tuple[str, ...] = ()
    deterministic: bool = False

    def __post_init__(self) -> None:
        for axis in (*AXES, "detection"):
            policy = getattr(self, axis)
            try:
                if not isinstance(policy, BASES[axis]):
                    check_policy(axis, policy)
            except PluginError as error:
                raise PolicyError(f"axis {axis}: {error}") from error
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if not isinstance(value, int) or value < least:
                raise PolicyError(f"found {name}={value!r}, expected a whole number of at least {least}")
        if self.fence and self.checkpoint_every * self.full_checkpoint_every != 1:
            raise PolicyError(
                f"found a fence with full state every {self.checkpoint_every * self.full_checkpoint_every} steps, expected it "
                "at each: a version without one would never be seen"
            )

        for other in ("fence", "deterministic"):
            if self.newer_weights and getattr(self, other):
                raise PolicyError(f"found newer_weights with {other}, expected one of the two: {_NOT_BOTH[other]}")

    def stands_on_trainer(self, pool: str) -> bool:
        """Whether the replicas of a pool are hybrids; the name is empty where all are alike."""
        return self.colocated and (not self.pools or any(one.hybrid for one in self.pools if one.name == pool))

    def relay_site(self, relay: int) -> str:
        """The site of a relay, by its number; empty for the trainer's."""
        return self.relay_sites[relay] if relay < len(self.relay_sites) else ""
