"""A pipeline: one policy on each of the eight axes, and the quantities that they work with."""

from __future__ import annotations

from dataclasses import dataclass, field

from tailrace.contracts import (
    AdmissionPolicy,
    BatchingPolicy,
    ProvisioningPolicy,
    RecoveryPolicy,
    RelocationPolicy,
    RoutingPolicy,
    Sampler,
    SyncPolicy,
    TrainingPolicy,
)


@dataclass(frozen=True, slots=True)
class EvaluationPlan:
    """When to evaluate and how.

    Args:
        size: held-out problems.
        every: versions between evaluations in `modes`; 0 for none in between.
        modes: decoding modes of every evaluation.
        first: further modes at the start (the controls of the warm start).
        last: further modes at the end.
    """

    size: int = 0
    every: int = 0
    modes: tuple[str, ...] = ("sampled",)
    first: tuple[str, ...] = ()
    last: tuple[str, ...] = ()


AXES = ("admission", "batching", "routing", "sync", "relocation", "training", "provisioning", "recovery")


@dataclass(frozen=True, slots=True)
class PipelineSpec:
    """What a `Controller` is made of.

    Args:
        sampler: which complete groups a batch takes.
        steps: batches to train on.
        batch_groups: groups in a batch.
        replica_batch: trajectories that one replica generates as one batch.
        buffer_groups: groups that may be waiting for a replica, generating or waiting for the trainer at once
            (back-pressure); None leaves it to admission, (bound + 1) batches for a bound, or is 4 batches if that has no limit.
        cycle_s: seconds at least between decisions that nothing but new load calls for. With hundreds of replicas, a second.
        cycle_trajectories: trajectories of the pool that one decision looks at; the rest follows in the next ones, so that a
            large backlog holds nothing up.
        checkpoint_every: batches between checkpoints.
        keep_checkpoints: newest checkpoints that the trainer can go back to; if one is damaged, an older one is used.
        scoring_attempts: how often a broken verifier is tried before the group is reported as failed.
        failed_groups_limit: so many failed groups end the run: then the verifier is wrong, not a response.
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
    buffer_groups: int | None = None
    cycle_s: float = 0.0
    cycle_trajectories: int = 8_192
    checkpoint_every: int = 1
    keep_checkpoints: int = 2
    scoring_attempts: int = 3
    failed_groups_limit: int = 64
    evaluation: EvaluationPlan = field(default_factory=EvaluationPlan)
