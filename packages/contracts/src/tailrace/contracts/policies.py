"""The eight axes (design, section 2) as protocols. All of it pure.

A policy is a frozen dataclass registered in the entry-point group of its axis. It keeps no state, reads no clock and draws
no random number: everything that it depends on is in its arguments. Two axes must remember, and open an object that the
controller owns: admission opens a gate, batching a source. What is said here of an axis is what its contract suite checks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tailrace.contracts.recovery import Failure, FleetView, RecoveryAction, StartReplica, StopReplica, Suspected
from tailrace.contracts.views import (
    Candidate,
    Evict,
    GroupEnd,
    Launch,
    Move,
    Placement,
    Pool,
    Progress,
    PromptFate,
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

    A group starts once, at a version that is fixed then, and leaves by `consume` or `drop`. A mistake, such as a start that is
    not allowed, the completion of a group that is not in flight or a batch that is not ready, is a `TailraceError` that changes
    nothing. If everything in flight completes and new groups start at the trainer's version, batches keep forming.
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
        """A view to plan with, as of now. What it lets in, `start` lets in, and nothing else."""
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
        """Started groups, none of them complete, that came too late for their batch (redundancy): to be aborted."""
        ...

    def expired(self) -> Sequence[int]:
        """Complete groups that must not be trained on any more, since they are too old: to be dropped. Asked before `ready`.

        Empty for an admission that starts nothing which it could not use in time. Nothing that was trained on early expires.
        """
        ...

    def ready(self) -> bool:
        """Whether the trainer may consume a batch now."""
        ...

    def trainable(self) -> Sequence[int]:
        """Complete groups that the next batch may be formed of now, in any order: what may be trained on before it is ready.

        All are within the bound, and once the batch is ready they are enough for it.

        Whichever of them are trained on early and not dropped, `consume` can still take them all, as many as a batch holds:
        they stay trainable until then, whatever else starts, completes or is dropped.
        """
        ...

    def consume(self, candidates: Sequence[Candidate], sampler: Sampler) -> Sequence[int]:
        """The groups of the next batch, complete ones within the bound; the trainer's version becomes one higher.

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
            Those that cannot be consumed within the bound any more, and those of versions that are no more; the gate has
            forgotten them. It keeps the rest, also if it is reset again.
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


class BatchingSource(Protocol):
    """Axis batching, at work: which prompt comes next, and what became of each. Pure; the controller is its one owner.

    A prompt is an index in the stream. A group is one attempt at it, with a number of its own. A prompt has at most one open
    group, and none after it is done. Sources of one policy share nothing, and answer the same if they are told the same.
    """

    def next(self, progress: Progress) -> Launch | None:
        """The next group; None if none is to start now. Asked while there is room for one, and again after each end.

        Asking changes nothing. None is no answer while no group is generating and less than a batch is complete: nothing would
        ever happen again.
        """
        ...

    def launched(self, group: int, launch: Launch) -> None:
        """The group that `next` asked for just now has this number."""
        ...

    def keeps(self, group: int, rewards: Sequence[float]) -> bool:
        """A group is complete, with these rewards of the samples that count, in their order: whether it is trained on.

        Otherwise it ends at once, filtered.
        """
        ...

    def ended(self, group: int, end: GroupEnd) -> PromptFate:
        """A group ended, heard once for each. Returns what becomes of its prompt.

        A prompt is trained on, filtered or failed exactly once, however many groups it took: one that was trained on is done. A
        source that answers `AGAIN` launches the prompt again later, at the latest some thousand groups on.
        """
        ...

    def state(self) -> dict[str, Any]:
        """Everything as plain data that JSON can carry, for comparison and for a person."""
        ...


class BatchingPolicy(Protocol):
    """Axis batching: which prompts and how many samples are launched next; what completes a group; what is kept."""

    @property
    def surplus_groups(self) -> int:
        """Groups generated for every batch beyond those that it needs (batch-level redundancy)."""
        ...

    def open(self) -> BatchingSource:
        """A source at the beginning of the prompt stream."""
        ...


class RoutingPolicy(Protocol):
    """Axis routing: which replica runs it."""

    def route(self, cycle: Cycle) -> Sequence[Placement]:
        """Where trajectories of the pool go now. What is not placed waits for the next cycle.

        A placement respects: the replica serves a version and is not pulling; a trajectory that is `exact` goes to a replica
        of its very version, another to one at least as new; a group that has not started goes to a replica that is `open`,
        and only if admission allows the replica's version, where its other trajectories must then be at least as new. Each is
        placed once. What is counted as started is counted on a fork of `cycle.admits`, which stays as it is, and the order of
        the replicas makes no difference.

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
        """Replicas that pull the newest published version now, each once: of those that are behind it.

        One with work in flight only if versions may be mixed, and none that is pulling or pinned. `cycle.admits` stays as it
        is, and the order of the replicas makes no difference to who pulls.
        """
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
        """Moves and evictions, whatever the order of the replicas.

        No replica is both a source and a destination, or gives its work away twice, and none of those named pulls or is pinned.
        What moves goes to a replica of the same version that has room for it: with all that comes, its KV cache and its
        capacity hold. What is evicted runs there; what is `exact` is evicted only if another replica serves its version.
        """
        ...


class TrainingPolicy(Protocol):
    """Axis training: when gradients are computed and applied."""

    @property
    def streams(self) -> bool:
        """Whether each part of a batch is trained on as soon as it is complete, before the batch is (`Accumulate`).

        The same for as long as the policy is there.
        """
        ...

    def split(self, groups: Sequence[int]) -> Sequence[Sequence[int]]:
        """The optimizer steps of one batch, as groups in order: each group in one of them, and none without groups.

        Where parts are streamed, only their sizes count, and these follow from the number of groups.
        """
        ...


class ProvisioningPolicy(Protocol):
    """Axis provisioning: who gets which devices, now."""

    def plan(self, view: FleetView) -> Sequence[StartReplica | StopReplica]:
        """What to change. Asked at the start, after each step, and when a member came up or went down.

        A replica that is down but will be restarted is still a member; one that is evicted is not. Only replicas are stopped,
        and none that is stopping. Once what it wants is under way it rests: asked again and again in one moment, it soon says
        nothing more, and then there is at least one replica that is not stopping.
        """
        ...


class RecoveryPolicy(Protocol):
    """Axis recovery: who is suspected, and what restarts when a member fails."""

    @property
    def window_s(self) -> float:
        """Failures that are longer ago do not count any more."""
        ...

    def on_down(self, failure: Failure) -> RecoveryAction:
        """What to do about a member that went down. One that it was told to stop is not a failure."""
        ...

    def suspects(self, view: FleetView) -> Sequence[Suspected]:
        """Members that live and yet do not work. Asked when a member reports that it stands still."""
        ...


class Sampler(Protocol):
    """Which complete groups the trainer consumes. Entry-point group ``tailrace.sampler``."""

    def pick(self, candidates: Sequence[Candidate], count: int) -> Sequence[int]:
        """Keys of exactly `count` candidates, in the order in which they are trained on."""
        ...
