"""The eight axes (design, section 2) as protocols. All of it pure.

A policy is a frozen dataclass registered in the entry-point group of its axis. It keeps no state, reads no clock and draws
no random number: everything that it depends on is in its arguments. Admission alone must remember: its policy opens a gate,
which is state that the controller owns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tailrace.contracts.views import (
    Candidate,
    Evict,
    GroupLaunch,
    Move,
    Placement,
    Pool,
    Progress,
    RecoveryAction,
    ReplicaView,
    Sync,
)


class TentativeAdmission(Protocol):
    """A gate as a planner sees it: it tries what would be admitted, and nothing of that is remembered."""

    def allows(self, version: int) -> bool:
        """Whether one more group may start at a version."""
        ...

    def take(self, group: int, version: int) -> None:
        """Count a group as started.

        Raises:
            Exception: it is not allowed.
        """
        ...

    def fork(self) -> TentativeAdmission:
        """An independent copy."""
        ...


class AdmissionGate(Protocol):
    """Axis admission, at work: what was started, is complete and was consumed. Pure; the controller is its one owner.

    A group starts once, at a version that is fixed then (SF-11), and leaves by `consume` or `drop`.
    """

    @property
    def bound(self) -> int | None:
        """Guaranteed: no group is consumed at a trainer version above its own plus this. None: nothing is guaranteed."""
        ...

    @property
    def room(self) -> int | None:
        """Groups that may be open (waiting, generating or complete) at once, a natural limit of the pool; None for none."""
        ...

    def tentative(self) -> TentativeAdmission:
        """A view to plan with, as of now."""
        ...

    def start(self, group: int, version: int) -> None:
        """The first trajectory of a group is routed to a replica that serves `version`."""
        ...

    def complete(self, group: int) -> None:
        """A started group has all the rewards that it needs."""
        ...

    def drop(self, group: int) -> None:
        """A group will not be trained on, started or not, complete or not."""
        ...

    def surplus(self) -> Sequence[int]:
        """Started groups that came too late for the batch they belong to (redundancy): to be aborted."""
        ...

    def expired(self) -> Sequence[int]:
        """Complete groups that must not be trained on any more, since they are too old: to be dropped. Asked before `ready`.

        Empty for an admission that starts nothing which it could not use in time.
        """
        ...

    def ready(self) -> bool:
        """Whether the trainer may consume a batch now."""
        ...

    def trainable(self) -> Sequence[int]:
        """Complete groups that the next batch may be formed of now, in any order: what may be trained on before it is ready.

        Whichever of them are trained on early and not dropped, `consume` can still take them all, as many as a batch holds:
        they stay trainable until then, whatever else starts, completes or is dropped.
        """
        ...

    def consume(self, candidates: Sequence[Candidate], sampler: Sampler) -> Sequence[int]:
        """The groups of the next batch; the trainer's version becomes one higher.

        Args:
            candidates: complete groups, in order of completion.
            sampler: chooses where the gate leaves a choice.
        """
        ...

    def reset(self, version: int, started: Mapping[int, tuple[int, bool]]) -> Sequence[int]:
        """The trainer is at another version than the gate thought: after a crash, or at the start.

        Args:
            started: groups that exist, with the version they started at and whether they are complete.

        Returns:
            Those that cannot be consumed within the bound any more; the gate has forgotten them.
        """
        ...

    def state(self) -> dict[str, Any]:
        """Everything as plain data, for comparison and for a person."""
        ...


class AdmissionPolicy(Protocol):
    """Axis admission: may this group start at a version, and when is a batch trainable."""

    def gate(self, batch_groups: int) -> AdmissionGate:
        """A gate for batches of so many groups, with nothing started and the trainer at version 0."""
        ...


@dataclass(frozen=True, slots=True)
class Cycle:
    """What sync, relocation and routing decide from: one pass of the snapshot-command cycle (StaleFlow, Algorithm 1).

    Args:
        replicas: replicas that are up, in the order in which they were first started.
        pool: trajectories that wait for a replica.
        admits: what admission would say.
        routing: the routing policy, for a policy that wants to know what it would do.
        routings: routing decisions of earlier cycles: one for each group that started and each trajectory that went on.
    """

    replicas: Sequence[ReplicaView]
    pool: Pool
    admits: TentativeAdmission
    progress: Progress
    routing: RoutingPolicy
    routings: int = 0


class BatchingPolicy(Protocol):
    """Axis batching: which prompts and how many samples are launched, and which groups are worth training on."""

    @property
    def surplus_groups(self) -> int:
        """Groups generated for every batch beyond those that it needs (batch-level redundancy)."""
        ...

    def launch(self, progress: Progress) -> GroupLaunch:
        """The next group."""
        ...

    def needed(self) -> int:
        """Scored trajectories that complete a group; the rest are surplus and aborted (group-level redundancy)."""
        ...

    def keeps(self, rewards: Sequence[float]) -> bool:
        """Whether a complete group with these rewards is trained on; otherwise it is filtered."""
        ...


class RoutingPolicy(Protocol):
    """Axis routing: which replica runs it."""

    def route(self, cycle: Cycle) -> Sequence[Placement]:
        """Where trajectories of the pool go now. What is not placed waits for the next cycle.

        A placement respects: the replica serves a version and is not pulling; a trajectory that is `exact` goes to a replica
        of its very version, another to one at least as new; a group that has not started goes to a replica that is `open`,
        and only if admission allows the replica's version, where its other trajectories must then be at least as new.

        `Placements` is a quicker answer where groups go whole.
        """
        ...


class SyncPolicy(Protocol):
    """Axis sync: when a replica pulls weights, and when it may be given work."""

    @property
    def mixes_versions(self) -> bool:
        """Whether a trajectory may go on under newer weights (partial rollout)."""
        ...

    def pulls(self, cycle: Cycle) -> Sequence[Sync]:
        """Replicas that pull the newest published version now. One with work in flight only if versions may be mixed."""
        ...

    def accepts(self, replica: ReplicaView, progress: Progress) -> bool:
        """Whether a replica may be given new groups now."""
        ...


class RelocationPolicy(Protocol):
    """Axis relocation: which running trajectories move."""

    def due(self, now_s: float, last_s: float, stepped: bool) -> bool:
        """Whether to plan now.

        Args:
            now_s: time.
            last_s: time of the last plan.
            stepped: the trainer has just updated the weights.
        """
        ...

    def plan(self, cycle: Cycle) -> Sequence[Move | Evict]:
        """Moves and evictions; no replica is both a source and a destination."""
        ...


class TrainingPolicy(Protocol):
    """Axis training: when gradients are computed and applied."""

    @property
    def streams(self) -> bool:
        """Whether each part of a batch is trained on as soon as it is complete, before the batch is (`Accumulate`)."""
        ...

    def split(self, groups: Sequence[int]) -> Sequence[Sequence[int]]:
        """The optimizer steps of one batch, as groups in order. Where parts are streamed, only their sizes count."""
        ...


class ProvisioningPolicy(Protocol):
    """Axis provisioning: who gets which devices."""

    def replicas(self) -> int:
        """Rollout replicas wanted."""
        ...


class RecoveryPolicy(Protocol):
    """Axis recovery: what restarts when a role fails."""

    def on_down(self, role: str, member: str, failures: int) -> RecoveryAction:
        """What to do with a member that went down for the `failures`-th time."""
        ...


class Sampler(Protocol):
    """Which complete groups the trainer consumes. Entry-point group ``tailrace.sampler``."""

    def pick(self, candidates: Sequence[Candidate], count: int) -> Sequence[int]:
        """Keys of exactly `count` candidates, in the order in which they are trained on."""
        ...
