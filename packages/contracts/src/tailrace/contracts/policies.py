"""The eight axes of a pipeline as base classes. All policies are pure.

A policy is a frozen dataclass that inherits the base class of its axis and is registered in the axis's entry-point group. It
keeps no state, reads no clock and draws no random number: its answers depend only on its arguments. Two axes must remember
something, so they open an object that the controller owns: admission opens a gate, batching a source. The contract suite of
each axis checks the rules stated here.

What is abstract must be written. Every other method has a default that does nothing: a policy says that it does more, or asks
for more, by overriding it, and its answer is always the same. An attribute of another name says nothing.

What follows from the run and not from a policy's own options is in its `Facts`. A policy takes from them what it asks for
(`AxisPolicy.options_from`), never by what its options are called.

Rules of every axis: the same arguments get the same answer; arguments are not changed; a `Reason` has the numbers and the name
that its kind lists in `Why`, or is `Why.POLICY`, which has any; options that make no sense raise a `ValueError` in
`__post_init__`. A gate refuses a wrong call with a `TailraceError`; a policy and a source raise nothing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self

from tailrace.contracts.facts import Facts
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
    RoundView,
    Sync,
    TrajectoryView,
)


class AxisPolicy(ABC):  # noqa: B024 - each axis says what is abstract
    """What the policies of all axes have in common."""

    __slots__ = ()

    @classmethod
    def options_from(cls, facts: Facts) -> Mapping[str, object]:  # noqa: ARG003 - for those who override it
        """Options that follow from the run, by name. Those that a configuration gives the policy itself are laid over them."""
        return {}


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


Prefixes = Callable[[TrajectoryView], Mapping[str, int]]
"""How many tokens of a trajectory, from its prompt's first on, the prefix cache of each replica probably has, under the weights
that it serves now; only of those that have any."""


def no_prefixes(trajectory: TrajectoryView) -> Mapping[str, int]:  # noqa: ARG001 - as `Prefixes` has it
    """Nothing is known of any cache."""
    return {}


class AdmissionGate(ABC):
    """The state of axis admission: which groups were started, completed and consumed. Pure; only the controller owns it.

    A group starts once, at a version that is then fixed and is not newer than the trainer's, and leaves by `consume` or
    `drop`. A wrong call (a start that is not allowed, the completion of a group that is not in flight, a batch that is not
    ready) raises a `TailraceError`, of a class of your own or of `tailrace.staleness`, and changes nothing. If everything in
    flight completes and new groups start at the trainer's version, batches keep forming.
    """

    __slots__ = ()

    @property
    @abstractmethod
    def bound(self) -> int | None:
        """The guaranteed bound: a group is consumed at most this many trainer versions above its own. None: no guarantee."""

    @property
    @abstractmethod
    def room(self) -> int | None:
        """Most groups that may be open at once (waiting, generating or complete), which limits the pool; None: no limit."""

    @abstractmethod
    def tentative(self) -> TentativeAdmission:
        """A copy to plan with, as of now. It allows exactly what `start` allows, so no version newer than the trainer's."""

    @abstractmethod
    def start(self, group: int, version: int) -> None:
        """Note that the first trajectory of a group is routed to a replica that serves `version`."""

    @abstractmethod
    def complete(self, group: int) -> None:
        """Note that a started group has all the rewards that it needs."""

    @abstractmethod
    def drop(self, group: int) -> None:
        """Note that a group, whatever its state, will not be trained on. One that never started, or is gone, is no error."""

    @abstractmethod
    def surplus(self) -> Sequence[int]:
        """Started, incomplete groups to abort, since their batch is complete without them (redundancy).

        The controller drops them at once; then there are no more until something else happens.
        """

    @abstractmethod
    def expired(self) -> Sequence[int]:
        """Complete groups to drop, since they are too old to be trained on. The controller asks before it asks `ready`.

        It is empty for an admission that starts only groups it can use in time. A group that was trained on early never
        expires.
        """

    @abstractmethod
    def ready(self) -> bool:
        """Whether the trainer may consume a batch now."""

    @abstractmethod
    def trainable(self) -> Sequence[int]:
        """Complete groups that may be trained on now, before the next batch is ready, in any order.

        Each is named once. All are within the bound, and once the batch is ready there are enough of them to fill it. A group
        that is trained on early stays trainable until `consume` takes it, whatever else starts, completes or is dropped;
        `consume` can take all such groups, up to the size of a batch.
        """

    @abstractmethod
    def consume(self, candidates: Sequence[Candidate], sampler: Sampler) -> Sequence[int]:
        """Take the groups of the next batch, `batch_groups` different ones, all complete and within the bound.

        The trainer's version rises by one, and the groups are gone.

        Args:
            candidates: complete groups, in order of completion.
            sampler: chooses, if more groups are complete than a batch needs and the gate allows any of them.
        """

    @abstractmethod
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

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """The whole state as plain data, to compare and to read. A refused call leaves it equal."""

    # ---- optional

    def starts_batchwise(self) -> bool:
        """Whether the prompts of a batch and the version that generates it do not depend on time.

        Its `room` then lets the controller launch a batch only when the one before has started whole. The controller in turn
        has no optimizer step end a batch while a launched group may start but has not: the version that the step makes would
        be too new for it.
        """
        return False

    def admits_rounds(self) -> bool:
        """Whether it admits batches of different sizes, as batching in rounds makes them (`rounds`)."""
        return False

    def rounds(self, sizes: Sequence[int], closed: int) -> None:  # noqa: ARG002 - for those who override it
        """Set the batches from now on: the open groups, in order of their numbers, form batches of these sizes.

        The controller calls it before it asks anything else, whenever they have changed. The groups of a batch that is not
        closed may not have started yet, and more of them may start than the batch will keep; the others are dropped first.

        Args:
            sizes: groups of each batch that was not consumed, oldest first.
            closed: how many of the first batches have all their groups.
        """
        return

    def waits_s(self) -> float | None:
        """Seconds, above 0, that the trainer waits for delayed groups before the controller drops them; None: for ever."""
        return None

    def delayed(self) -> Sequence[int]:
        """Started, incomplete groups that alone keep a batch from being ready: it is ready once all of them are dropped.

        Empty if a batch is ready, or is not even without them. Asking changes nothing.
        """
        return ()


class AdmissionPolicy(AxisPolicy):
    """Axis admission: may a group start at a version, and when is a batch trainable."""

    __slots__ = ()

    @abstractmethod
    def gate(self, batch_groups: int) -> AdmissionGate:
        """A gate for batches of `batch_groups` groups, with no group started and the trainer at version 0."""

    # ---- optional

    @property
    def surplus_groups(self) -> int:
        """Groups of each batch beyond what it needs that its gates have room for (`BatchingPolicy.surplus_groups`)."""
        return 0


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
        prefixes: what the prefix caches of replicas have, where the routing policy asks for it (`sees_prefixes`).
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
    prefixes: Prefixes = no_prefixes


class BatchingSource(ABC):
    """The state of axis batching: which prompt comes next, and what became of each. Pure; only the controller owns it.

    A prompt is an index in the stream. A group is one attempt at it, with its own number. A prompt has at most one open
    group, and none after it is done. Sources of one policy share no state, and the same calls get the same answers.
    """

    __slots__ = ()

    @abstractmethod
    def next(self, progress: Progress) -> Launch | None:
        """The next group; None if none should start now. The controller asks while there is room, and after each group's end.

        Asking changes nothing. The prompt is not below 0 and has no open group, and `needed` is from 1 to `samples`. The
        answer must not be None while no group is generating and less than a batch is complete: the run would stand still for
        ever.
        """

    @abstractmethod
    def launched(self, group: int, launch: Launch) -> None:
        """Note the number of the group that `next` just asked for. Numbers rise, with gaps, from any first one."""

    @abstractmethod
    def keeps(self, group: int, rewards: Sequence[float]) -> bool:
        """Whether a complete group is trained on; otherwise it ends as filtered.

        Args:
            rewards: of the samples that count, in their order.
        """

    @abstractmethod
    def ended(self, group: int, end: GroupEnd) -> PromptFate:
        """What becomes of the prompt of a group that ended. The controller calls this once for each group, in any order.

        An unscored group says nothing against its prompt, which may come again: the sandbox or the judge may be back then.
        A prompt is trained on, filtered or failed exactly once, however many groups it took: one that was trained on is done.
        A source that answers `AGAIN` launches the prompt again within a few thousand groups.
        """

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """The whole state as plain data that JSON can carry, to compare and to read."""

    # ---- optional

    def ahead(self, count: int) -> Sequence[int] | None:  # noqa: ARG002 - for those who override it
        """At most `count` prompts that it will probably launch next, in this order; None: it never says.

        Asking changes nothing. The lengths of these prompts are predicted before they are launched; those of others are once
        they are launched. A prompt that is not launched after all costs a prediction, one that is not named has it later:
        neither is an error.
        """
        return None

    def launches_rounds(self) -> bool:
        """Whether its groups come in rounds (RollPacker, section 3), each of which keeps one batch.

        Every `Launch` then has the number of its round; numbers rise by one. A round is open until nothing of it is awaited;
        then it is closed, and the next launch belongs to the next round. Admission must know rounds too
        (`AdmissionGate.admits_rounds`). Only such a source is asked for what follows.
        """
        return False

    def open_round(self) -> RoundView | None:
        """The open round; None if none of its groups was launched yet. The source does not count `generated`."""
        return None

    def unlaunched(self) -> int:
        """Groups that `next` will answer without another group's end in between: those of the open round, not launched yet."""
        return 0

    def completed(self, group: int) -> None:  # noqa: ARG002 - for those who override it
        """Note that a group is complete and kept. The controller calls it after `keeps`."""
        return

    def surplus(self) -> Sequence[int]:
        """Launched, incomplete groups that their round does not need. The controller ends them at once, as surplus."""
        return ()


class BatchingPolicy(AxisPolicy):
    """Axis batching: which prompts and how many samples are launched next; what completes a group; what is kept."""

    __slots__ = ()

    @property
    def surplus_groups(self) -> int:
        """Groups generated for each batch beyond what it needs (batch-level redundancy): at least 0, always the same."""
        return 0

    @abstractmethod
    def open(self) -> BatchingSource:
        """A source at the beginning of the prompt stream."""

    # ---- optional

    def draws_again(self) -> bool:
        """Whether any launch has a `draw`: then the engine must keep seeds."""
        return False


class StepPlanner(AxisPolicy):
    """What policies of routing and relocation may ask for, since they plan decoding steps."""

    __slots__ = ()

    def plans_tokens(self) -> bool:
        """Whether it plans with the tokens of trajectories, so that views count prompts (`TrajectoryView.tokens`)."""
        return False

    def needs_predictions(self) -> bool:
        """Whether it plans with predicted lengths, so that a run without a ranker is refused."""
        return False

    def learns_costs(self) -> bool:
        """Whether it plans with the costs of a decoding step that the run itself fits (`with_costs`)."""
        return False

    def with_costs(self, k1: float, k2: float, k3: float, k4: float) -> Self:  # noqa: ARG002 - for those who override it
        """The same policy with these coefficients: seconds of a step are k1 x tokens + max(k2, k3 x trajectories) + k4."""
        return self


class RoutingPolicy(StepPlanner):
    """Axis routing: which replica runs a trajectory."""

    __slots__ = ()

    @abstractmethod
    def route(self, cycle: Cycle) -> Sequence[Placement]:
        """Where trajectories of the pool go now. A trajectory that is not placed waits for the next cycle.

        Rules: each trajectory is placed at most once, on a replica that serves a version and is not pulling. An `exact`
        trajectory needs a replica of its own version, any other one at least as new. A group that has not started goes only to
        an `open` replica whose version admission allows; its other trajectories then need that version or a newer one. Starts
        are counted on a fork of `cycle.admits`, in the order of the placements; `cycle.admits` itself does not change. The
        order of the replicas makes no difference to the placements or to their order: decide by name among equals.
        `Placements` is a faster result type where groups are placed whole.
        """

    # ---- optional

    def sees_prefixes(self) -> bool:
        """Whether it plans with what prefix caches have (`Cycle.prefixes`).

        It is then asked where a trajectory goes on whose environment has answered. Otherwise that goes where its last turn was.
        """
        return False


class SyncPolicy(AxisPolicy):
    """Axis sync: when a replica pulls weights, and when it may be given work."""

    __slots__ = ()

    @property
    def mixes_versions(self) -> bool:
        """Whether a trajectory may continue under newer weights (partial rollout)."""
        return False

    @abstractmethod
    def pulls(self, cycle: Cycle) -> Sequence[Sync]:
        """Replicas that pull the newest published version now, each named once.

        Each is behind that version, not pulling and not pinned; it has work in flight only if versions may be mixed.
        `cycle.admits` does not change, and the order of the replicas makes no difference to who pulls. Before the first
        version is published (`progress.published` is -1) nobody pulls. A replica that has nothing to do at its version and is
        behind pulls in the end, or the run stands still.
        """

    @abstractmethod
    def accepts(self, replica: ReplicaView, progress: Progress) -> bool:
        """Whether a replica may be given new groups now."""


class RelocationPolicy(StepPlanner):
    """Axis relocation: which running trajectories move."""

    __slots__ = ()

    @abstractmethod
    def due(self, now_s: float, last_s: float, updated: bool) -> bool:
        """Whether to plan now.

        Args:
            now_s: the time now.
            last_s: the time of the last plan.
            updated: whether the weights of an update can be pulled since this moment, so that a replica which is emptied now
                gets its next groups at them.
        """

    @abstractmethod
    def plan(self, cycle: Cycle) -> Sequence[Move | Evict]:
        """Moves and evictions. The order of the replicas makes no difference to which.

        No replica is both a source and a destination, or is a source twice, or evicts and moves; none of those named pulls or
        is pinned. A source has work. A destination serves the source's version, and has KV cache and capacity for everything
        that moves there, all moves together. An eviction names at least one trajectory, each once, and it runs on the replica
        named; an `exact` one is evicted only if another replica, which is not pulling, serves its version.
        """


@dataclass(frozen=True, slots=True)
class EarlyGradients:
    """How cells of the trainer get complete groups before their batch is complete, whose gradients they add.

    Args:
        groups: most groups of one `Accumulate`, which a cell gets; at least 1.
        tokens: response tokens that fill a cell, which gets groups of an incomplete batch only once they are enough for that;
            at least 1. None: it does not wait for so many.
        share: most groups that cells get, at one time only, before the batch is complete, as a share of it: above 0, at most 1.
            None: they get groups at any time.
    """

    groups: int
    tokens: int | None = None
    share: float | None = None


class TrainingPolicy(AxisPolicy):
    """Axis training: when gradients are computed and applied."""

    __slots__ = ()

    @property
    def streams(self) -> bool:
        """Whether each part of a batch is trained on as soon as it is complete, before the batch is (`Accumulate`).

        A policy always gives the same answer.
        """
        return False

    @abstractmethod
    def split(self, groups: Sequence[int]) -> Sequence[Sequence[int]]:
        """The groups of each optimizer step of one batch, in order. Each group is in one step, and no step is empty.

        A batch may have any number of groups from 1. Where parts are streamed, only the sizes are used; they must depend on
        the number of groups alone.
        """

    # ---- optional

    def early_gradients(self) -> EarlyGradients | None:
        """How complete groups add gradients before their batch is complete; None if they do not.

        Then `streams` is true, and `split` gives one part.
        """
        return None


@dataclass(frozen=True, slots=True)
class Growth:
    """How many replicas a provisioning policy may have, where they may use more devices than those of the start.

    Args:
        start: replicas that it starts a run with, at least 1.
        most: most replicas at once, without those that are stopping; at least `start`.
        spans: devices of each of its replicas; None: as many as the run's configuration says.
        pool: of several pools the one that grows; empty: all replicas are alike.
    """

    start: int
    most: int
    spans: int | None = None
    pool: str = ""


class ProvisioningPolicy(AxisPolicy):
    """Axis provisioning: who gets which devices, now."""

    __slots__ = ()

    @abstractmethod
    def plan(self, view: FleetView) -> Sequence[FleetAction]:
        """What to change. The controller asks at the start, after each step, and when a member came up or went down.

        A replica that is down but will be restarted is still a member; one that is evicted is not. Only replicas of the view
        are stopped or resized, none that is stopping already, and none both. One that is to be resized has its new size in the
        view at once, and is starting until it is up again. Asked repeatedly in one moment, with its actions carried out, the
        policy soon answers nothing more; then at least one replica is not stopping. Its replicas never use more devices than
        those of its start, unless it says how many they may be (`growth`).
        """

    # ---- optional

    def growth(self) -> Growth | None:
        """How many replicas there may be; None if they never use more devices than those of the start.

        Before a run starts, it is checked that a cluster has devices for all of them: one that is added would otherwise wait
        for its own until its deadline.
        """
        return None

    def sizes_of_replicas(self) -> Sequence[int]:
        """Devices that a replica may span after it is resized; empty if none ever is."""
        return ()

    def watched_iterations(self) -> int:
        """Most iterations that its view has (`FleetView.iterations`, and `FleetView.lengths`); 0: it asks for none.

        Trainer and replicas must have devices of their own: the times of stages that take turns on the same devices cannot be
        compared.
        """
        return 0

    def round_milestones(self) -> Sequence[float] | None:
        """Shares, from 0 to 1, of the samples that a round keeps: `plan` is asked when so many have finished generating.

        It is also asked when a round begins and ends, and its view has the rounds. None: it asks for no rounds.
        """
        return None

    def lends_devices(self) -> bool:
        """Whether it may ever answer a `LendReplica` in a round: then cells of the trainer must share the replicas' devices.

        It may not lend a replica that is `kept`: a judge beside it owes scores until the round's last response.
        """
        return False

    def yields_from(self) -> float | None:
        """Share of a batch's groups, above 0 and at most 1, that must be complete before hybrids yield.

        None: it does not lend all hybrids to the trainer as a whole, for its steps. If it does, its view has the next batch and
        the loads. `plan` is also asked when this share is reached, when the trainer begins and ends to compute, and when a
        hybrid that is to yield can. The trainer computes only while every hybrid that is up is lent, so all must be once the
        batch is ready: one that pulls or evaluates once it is done with that. They come back when the trainer needs them no
        more.
        """
        return None

    def trains_on(self) -> int | None:
        """Devices on which the trainer is to start, where the policy shares devices among both stages; None: as configured."""
        return None


class RecoveryPolicy(AxisPolicy):
    """Axis recovery: what restarts when a member fails. Who counts as down is for detection to say (`DetectionPolicy`)."""

    __slots__ = ()

    @property
    @abstractmethod
    def window_s(self) -> float:
        """Seconds after which a failure no longer counts for its role and its machine: above 0 and finite."""

    @abstractmethod
    def on_down(self, failure: Failure) -> RecoveryAction:
        """What to do about a member that went down. It is not asked about a member that was told to stop.

        It answers for every role, also one that it does not know, every cause and every count. It does not evict the last
        member of a role (`failure.others` is 0), nor a machine that is unknown. A member that fails again and again without
        work in between, on whatever machine, is in the end evicted or fails the run, and the last of its role fails it. But
        the last ranker may be evicted, since nothing waits for it.
        """

    # ---- optional

    def takes_standbys(self) -> bool:
        """Whether it may answer `STANDBY`: there must then be replicas that can stand in for the trainer."""
        return False

    def allowed(self, role: str) -> int | None:  # noqa: ARG002 - for those who override it
        """Restarts in a row, without work in between, that a member of a role has, for displays; None: it does not say."""
        return None


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
