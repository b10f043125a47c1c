"""The eight axes of a pipeline as protocols. All policies are pure.

A policy is a frozen dataclass registered in the entry-point group of its axis. It keeps no state, reads no clock and draws
no random number: its answers depend only on its arguments. Two axes must remember something, so they open an object that the
controller owns: admission opens a gate, batching a source. The contract suite of each axis checks the rules stated here.

Rules of every axis: the same arguments get the same answer; arguments are not changed; a `Reason` has the numbers and the name
that its kind lists in `Why`, or is `Why.POLICY`, which has any; options that make no sense raise a `ValueError` in
`__post_init__`. A gate refuses a wrong call with a `TailraceError`; a policy and a source raise nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from tailrace.contracts.recovery import Failure, FleetAction, FleetView, RecoveryAction
from tailrace.contracts.views import (
    Candidate,
    Evict,
    GroupEnd,
    Launch,
    MeasuredLengths,
    MeasuredRecall,
    Move,
    Placement,
    Pool,
    Progress,
    PromptFate,
    ReplicaView,
    Sync,
)


class TentativeAdmission(Protocol):
    """A copy of a gate's state, on which a planner tries what would be admitted without changing the gate.

    What one copy is told changes neither the gate nor another copy. The gate allows every start that a copy has taken, if they
    come in the same order and nothing else happens in between.
    """

    def allows(self, version: int) -> bool:
        """Whether one more group may start at a version."""
        ...

    def take(self, group: int, version: int) -> None:
        """Count a group as started.

        Raises:
            TailraceError: `allows` says no, or the group was started before. The copy is unchanged.
        """
        ...

    def fork(self) -> TentativeAdmission:
        """An independent copy."""
        ...


class AdmissionGate(Protocol):
    """The state of axis admission: which groups were started, completed and consumed. Pure; only the controller owns it.

    A group starts once, at a version that is then fixed and is not newer than the trainer's, and leaves by `consume` or
    `drop`. A wrong call (a start that is not allowed, the completion of a group that is not in flight, a batch that is not
    ready) raises a `TailraceError`, of a class of your own or of `tailrace.staleness`, and changes nothing. If everything in
    flight completes and new groups start at the trainer's version, batches keep forming.
    """

    @property
    def bound(self) -> int | None:
        """The guaranteed bound: a group is consumed at most this many trainer versions above its own. None: no guarantee."""
        ...

    @property
    def room(self) -> int | None:
        """Most groups that may be open at once (waiting, generating or complete), which limits the pool; None: no limit."""
        ...

    def tentative(self) -> TentativeAdmission:
        """A copy to plan with, as of now. It allows exactly what `start` allows, so no version newer than the trainer's."""
        ...

    def start(self, group: int, version: int) -> None:
        """Note that the first trajectory of a group is routed to a replica that serves `version`."""
        ...

    def complete(self, group: int) -> None:
        """Note that a started group has all the rewards that it needs."""
        ...

    def drop(self, group: int) -> None:
        """Note that a group, whatever its state, will not be trained on. One that never started, or is gone, is no error."""
        ...

    def surplus(self) -> Sequence[int]:
        """Started, incomplete groups to abort, since their batch is complete without them (redundancy).

        The controller drops them at once; then there are no more until something else happens.
        """
        ...

    def expired(self) -> Sequence[int]:
        """Complete groups to drop, since they are too old to be trained on. The controller asks before it asks `ready`.

        It is empty for an admission that starts only groups it can use in time. A group that was trained on early never
        expires.
        """
        ...

    def ready(self) -> bool:
        """Whether the trainer may consume a batch now."""
        ...

    def trainable(self) -> Sequence[int]:
        """Complete groups that may be trained on now, before the next batch is ready, in any order.

        Each is named once. All are within the bound, and once the batch is ready there are enough of them to fill it. A group
        that is trained on early stays trainable until `consume` takes it, whatever else starts, completes or is dropped;
        `consume` can take all such groups, up to the size of a batch.
        """
        ...

    def consume(self, candidates: Sequence[Candidate], sampler: Sampler) -> Sequence[int]:
        """Take the groups of the next batch, `batch_groups` different ones, all complete and within the bound.

        The trainer's version rises by one, and the groups are gone.

        Args:
            candidates: complete groups, in order of completion.
            sampler: chooses, if more groups are complete than a batch needs and the gate allows any of them.
        """
        ...

    def reset(self, version: int, started: Mapping[int, tuple[int, bool]]) -> Sequence[int]:
        """Set the trainer's version and the started groups, after a crash or at the start. All else is forgotten.

        The version may be older than the trainer's was: a crash undoes what no checkpoint holds. Groups that were trained on
        early are complete groups again.

        Args:
            started: existing groups, each with the version it started at and whether it is complete.

        Returns:
            Groups that the gate has dropped, since they can no longer be consumed within the bound or their version no
            longer exists. It keeps the rest, also through another reset.
        """
        ...

    def state(self) -> dict[str, Any]:
        """The whole state as plain data, to compare and to read. A refused call leaves it equal."""
        ...


@runtime_checkable
class DropsDelayed(Protocol):
    """What an `AdmissionGate` may also have, so that training does not wait for a group that takes too long."""

    @property
    def patience_s(self) -> float | None:
        """Seconds, above 0, that the trainer waits for delayed groups before the controller drops them; None: for ever."""
        ...

    def delayed(self) -> Sequence[int]:
        """Started, incomplete groups that alone keep a batch from being ready: it is ready once all of them are dropped.

        Empty if a batch is ready, or is not even without them. Asking changes nothing.
        """
        ...


class AdmissionPolicy(Protocol):
    """Axis admission: may a group start at a version, and when is a batch trainable."""

    def gate(self, batch_groups: int) -> AdmissionGate:
        """A gate for batches of `batch_groups` groups, with no group started and the trainer at version 0."""
        ...


@dataclass(frozen=True, slots=True)
class Cycle:
    """The input of sync, relocation and routing: one pass of the snapshot-command cycle (StaleFlow, Algorithm 1).

    Args:
        replicas: replicas that are up, in the order in which they were first started.
        pool: trajectories that wait for a replica.
        admits: a copy of admission's state, to try starts on.
        progress: how far the run is.
        routing: the routing policy, for a policy that wants to know where it would place trajectories.
        routings: routing decisions of earlier cycles: one for each group that started and each trajectory that resumed.
        turn: number of earlier cycles. A policy that bounds its work per cycle uses it to continue with other replicas.
        recall: how well predicted lengths found the longest of late; None if too little has ended to say.
        lengths: how long responses were of late, in a run whose lengths are predicted; None before a batch was trained on.
    """

    replicas: Sequence[ReplicaView]
    pool: Pool
    admits: TentativeAdmission
    progress: Progress
    routing: RoutingPolicy
    routings: int = 0
    turn: int = 0
    recall: MeasuredRecall | None = None
    lengths: MeasuredLengths | None = None


class BatchingSource(Protocol):
    """The state of axis batching: which prompt comes next, and what became of each. Pure; only the controller owns it.

    A prompt is an index in the stream. A group is one attempt at it, with its own number. A prompt has at most one open
    group, and none after it is done. Sources of one policy share no state, and the same calls get the same answers.
    """

    def next(self, progress: Progress) -> Launch | None:
        """The next group; None if none should start now. The controller asks while there is room, and after each group's end.

        Asking changes nothing. The prompt is not below 0 and has no open group, and `needed` is from 1 to `samples`. The
        answer must not be None while no group is generating and less than a batch is complete: the run would stand still for
        ever.
        """
        ...

    def launched(self, group: int, launch: Launch) -> None:
        """Note the number of the group that `next` just asked for. Numbers rise, with gaps, from any first one."""
        ...

    def keeps(self, group: int, rewards: Sequence[float]) -> bool:
        """Whether a complete group is trained on; otherwise it ends as filtered.

        Args:
            rewards: of the samples that count, in their order.
        """
        ...

    def ended(self, group: int, end: GroupEnd) -> PromptFate:
        """What becomes of the prompt of a group that ended. The controller calls this once for each group, in any order.

        An unscored group says nothing against its prompt, which may come again: the sandbox or the judge may be back then.
        A prompt is trained on, filtered or failed exactly once, however many groups it took: one that was trained on is done.
        A source that answers `AGAIN` launches the prompt again within a few thousand groups.
        """
        ...

    def state(self) -> dict[str, Any]:
        """The whole state as plain data that JSON can carry, to compare and to read."""
        ...


class BatchingPolicy(Protocol):
    """Axis batching: which prompts and how many samples are launched next; what completes a group; what is kept."""

    @property
    def surplus_groups(self) -> int:
        """Groups generated for each batch beyond what it needs (batch-level redundancy): at least 0, always the same."""
        ...

    def open(self) -> BatchingSource:
        """A source at the beginning of the prompt stream."""
        ...


class RoutingPolicy(Protocol):
    """Axis routing: which replica runs a trajectory."""

    def route(self, cycle: Cycle) -> Sequence[Placement]:
        """Where trajectories of the pool go now. A trajectory that is not placed waits for the next cycle.

        Rules: each trajectory is placed at most once, on a replica that serves a version and is not pulling. An `exact`
        trajectory needs a replica of its own version, any other one at least as new. A group that has not started goes only to
        an `open` replica whose version admission allows; its other trajectories then need that version or a newer one. Starts
        are counted on a fork of `cycle.admits`, in the order of the placements; `cycle.admits` itself does not change. The
        order of the replicas makes no difference to the placements or to their order: decide by name among equals.
        `Placements` is a faster result type where groups are placed whole.
        """
        ...


class SyncPolicy(Protocol):
    """Axis sync: when a replica pulls weights, and when it may be given work."""

    @property
    def mixes_versions(self) -> bool:
        """Whether a trajectory may continue under newer weights (partial rollout)."""
        ...

    def pulls(self, cycle: Cycle) -> Sequence[Sync]:
        """Replicas that pull the newest published version now, each named once.

        Each is behind that version, not pulling and not pinned; it has work in flight only if versions may be mixed.
        `cycle.admits` does not change, and the order of the replicas makes no difference to who pulls. Before the first
        version is published (`progress.published` is -1) nobody pulls. A replica that has nothing to do at its version and is
        behind pulls in the end, or the run stands still.
        """
        ...

    def accepts(self, replica: ReplicaView, progress: Progress) -> bool:
        """Whether a replica may be given new groups now."""
        ...


class RelocationPolicy(Protocol):
    """Axis relocation: which running trajectories move."""

    def due(self, now_s: float, last_s: float, updated: bool) -> bool:
        """Whether to plan now.

        Args:
            now_s: the time now.
            last_s: the time of the last plan.
            updated: whether the weights of an update can be pulled since this moment, so that a replica which is emptied now
                gets its next groups at them.
        """
        ...

    def plan(self, cycle: Cycle) -> Sequence[Move | Evict]:
        """Moves and evictions. The order of the replicas makes no difference to which.

        No replica is both a source and a destination, or is a source twice, or evicts and moves; none of those named pulls or
        is pinned. A source has work. A destination serves the source's version, and has KV cache and capacity for everything
        that moves there, all moves together. An eviction names at least one trajectory, each once, and it runs on the replica
        named; an `exact` one is evicted only if another replica, which is not pulling, serves its version.
        """
        ...


class TrainingPolicy(Protocol):
    """Axis training: when gradients are computed and applied."""

    @property
    def streams(self) -> bool:
        """Whether each part of a batch is trained on as soon as it is complete, before the batch is (`Accumulate`).

        A policy always gives the same answer.
        """
        ...

    def split(self, groups: Sequence[int]) -> Sequence[Sequence[int]]:
        """The groups of each optimizer step of one batch, in order. Each group is in one step, and no step is empty.

        A batch may have any number of groups from 1. Where parts are streamed, only the sizes are used; they must depend on
        the number of groups alone.
        """
        ...


class ProvisioningPolicy(Protocol):
    """Axis provisioning: who gets which devices, now."""

    def plan(self, view: FleetView) -> Sequence[FleetAction]:
        """What to change. The controller asks at the start, after each step, and when a member came up or went down.

        A replica that is down but will be restarted is still a member; one that is evicted is not. Only replicas of the view
        are stopped or resized, none that is stopping already, and none both. One that is to be resized has its new size in the
        view at once, and is starting until it is up again. Asked repeatedly in one moment, with its actions carried out, the
        policy soon answers nothing more; then at least one replica is not stopping. Its replicas never use more devices than
        those of its start, unless it says how many they may be (`AddsReplicas`).
        """
        ...


class RecoveryPolicy(Protocol):
    """Axis recovery: what restarts when a member fails. Who counts as down is for detection to say (`DetectionPolicy`)."""

    @property
    def window_s(self) -> float:
        """Seconds after which a failure no longer counts for its role and its machine: above 0 and finite."""
        ...

    def on_down(self, failure: Failure) -> RecoveryAction:
        """What to do about a member that went down. It is not asked about a member that was told to stop.

        It answers for every role, also one that it does not know, every cause and every count. It does not evict the last
        member of a role (`failure.others` is 0), nor a machine that is unknown. A member that fails again and again without
        work in between, on whatever machine, is in the end evicted or fails the run, and the last of its role fails it. But
        the last ranker may be evicted, since nothing waits for it.
        """
        ...


@runtime_checkable
class AllowsRestarts(Protocol):
    """What a `RecoveryPolicy` may also have, so that displays say which restart of how many one is."""

    def allowed(self, role: str) -> int:
        """Restarts in a row, without work in between, that a member of a role has."""
        ...


class Sampler(Protocol):
    """Which complete groups the trainer consumes. Entry-point group ``tailrace.sampler``."""

    def pick(self, candidates: Sequence[Candidate], count: int) -> Sequence[int]:
        """Keys of exactly `count` different candidates, in the order in which to train on them."""
        ...


class Eviction(Protocol):
    """Which complete groups leave a full experience buffer, untrained. Entry-point group ``tailrace.eviction``."""

    def evict(self, candidates: Sequence[Candidate], count: int) -> Sequence[int]:
        """Keys of exactly `count` different candidates, all that the buffer holds with the group that came in last."""
        ...
