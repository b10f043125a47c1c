"""The input and the answers of policies: the state of the run, of replicas and of the pool, and decisions on them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, ValuesView
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import chain
from typing import overload

from tailrace.contracts.reasons import CHOSEN, Reason, Why
from tailrace.contracts.record import record


@record
class MeasuredRecall:
    """Recall of predictions that were made before the lengths were known, on the groups that ended last.

    Args:
        recall: of the longest 20 % of their trajectories, the part that was among the 20 % with the longest predictions.
        chance: the recall up to which they may have been found by chance.
        groups: on how many groups it was measured.
    """

    recall: float
    chance: float
    groups: int

    @property
    def by_chance(self) -> bool:
        """Whether the predictions may as well have been drawn at random."""
        return self.recall <= self.chance


@record
class MeasuredLengths:
    """How long the responses were that ended last, whatever was predicted for them.

    Args:
        p50: median of their generated tokens.
        p90: the ninetieth percentile.
        trajectories: of how many.
    """

    p50: float
    p90: float
    trajectories: int


@record
class RoundView:
    """The round that is being generated (RollPacker, section 3).

    Args:
        number: its number, rising.
        kind: ``"short"`` or ``"long"``.
        size: groups that it keeps.
        kept: groups that are complete so far.
        samples: trajectories that it keeps: `size` groups of them.
        generated: of those, trajectories that have finished generating so far.
    """

    number: int
    kind: str
    size: int
    kept: int
    samples: int
    generated: int


@record
class RoundRecord:
    """A round that is over.

    Args:
        number: its number, rising.
        kind: ``"short"`` or ``"long"``.
        size: groups that it kept.
        tp: devices of each replica (tensor parallelism) while it was generated.
        preemptions: times that engines took a trajectory's KV cache away in it.
        generation_s: seconds from its first start to its last complete group.
    """

    number: int
    kind: str
    size: int
    tp: int
    preemptions: int
    generation_s: float


_POLICY = Reason(Why.POLICY)


@record
class Progress:
    """How far the run is. Counts are groups.

    Args:
        version: the trainer's version.
        published: the newest version that replicas may pull.
        admitted: groups started so far.
        generating: groups started and not complete.
        buffered: groups complete and not consumed.
        consumed: groups trained on.
        dropped: groups filtered or failed.
        batch_groups: groups in one batch.
        last_version: the version at which the run ends.
        behind: replicas that are up, do not serve the newest version that may be pulled, and whose devices are not lent.
    """

    version: int
    published: int
    admitted: int
    generating: int
    buffered: int
    consumed: int
    dropped: int
    batch_groups: int
    last_version: int
    behind: int = 0


@record
class TrajectoryView:
    """A trajectory that waits in the pool or runs on a replica.

    Args:
        version: the oldest version that it may be generated with (V_traj of StaleFlow, section 4.1); None until its group
            has started.
        tokens: known prompt and response tokens so far: what a KV cache would hold of it. Without its prompt where no policy of
            the run plans with tokens (`plans_tokens`).
        exact: all its tokens must come from `version`; otherwise any newer version may continue it (partial rollout).
        predicted: response tokens that are predicted for it in all, at least 1; None if nothing is predicted.
        left: response tokens that are expected to come yet, at least 1: E[L - t | L > t] for the t tokens that are known, since
            it has not ended with them, of lengths up to the longest that a run allows. None if no quantiles are predicted.
        prompt_tokens: those of `tokens` that are its prompt's; the mean of other prompts while its own is not measured, and 0
            while none is.
    """

    trajectory: str
    group: int
    version: int | None = None
    tokens: int = 0
    exact: bool = False
    predicted: float | None = None
    left: float | None = None
    prompt_tokens: int = 0


Pool = Mapping[int | None, Mapping[str, TrajectoryView]]
"""Trajectories that wait for a replica, by version: oldest first, those without a version last; then in order of arrival.

Those without a version may come as an `Unstarted`, which stores them by group.
"""


class Unstarted(Mapping[str, TrajectoryView]):
    """Groups that have not started, in order of arrival: the last level of a pool.

    It is a mapping like every other level, but creates each view when it is read. A policy that places whole groups reads
    `groups` instead: there may be tens of thousands of trajectories, and those of one group are all alike. `predicted` and
    `left` have what a view of each trajectory of a group has, if there is a prediction, `tokens` those of its prompt.
    """

    __slots__ = ("_index", "_sizes", "groups", "left", "predicted", "tokens")

    def __init__(self) -> None:
        self.groups: dict[int, Sequence[str]] = {}
        self.predicted: dict[int, float] = {}
        self.left: dict[int, float] = {}
        self.tokens: dict[int, int] = {}
        self._sizes: dict[int, int] = {}
        self._index: dict[str, int] | None = None

    @property
    def smallest(self) -> int:
        """Trajectories of the smallest group; 0 if there is none."""
        return min(self._sizes, default=0)

    def add(
        self,
        group: int,
        members: Sequence[str],
        predicted: float | None = None,
        left: float | None = None,
        tokens: int = 0,
    ) -> None:
        """Add a group that has not started, with what is predicted for each of its trajectories, and its prompt's tokens."""
        self.groups[group] = members
        self.measure(group, tokens)
        self.predict(group, predicted, left)
        self._sizes[len(members)] = self._sizes.get(len(members), 0) + 1
        self._index = None

    def predict(self, group: int, predicted: float | None, left: float | None) -> None:
        """Set what is predicted for each trajectory of a group, in place of what was."""
        for known, tokens in ((self.predicted, predicted), (self.left, left)):
            known.pop(group, None)
            if tokens is not None:
                known[group] = tokens

    def measure(self, group: int, tokens: int) -> None:
        """Set how many tokens the prompt of a group has."""
        if tokens:
            self.tokens[group] = tokens

    def remove(self, group: int) -> None:
        """Remove a group that starts or is dropped.

        Raises:
            KeyError: the group is not here.
        """
        size = len(self.groups.pop(group))
        self.predicted.pop(group, None)
        self.left.pop(group, None)
        self.tokens.pop(group, None)
        self._sizes[size] -= 1
        if not self._sizes[size]:
            del self._sizes[size]
        self._index = None

    def __getitem__(self, trajectory: str) -> TrajectoryView:
        if self._index is None:
            self._index = {name: group for group, members in self.groups.items() for name in members}
        group = self._index[trajectory]
        predicted, left, tokens = self.predicted.get(group), self.left.get(group), self.tokens.get(group, 0)
        return TrajectoryView(trajectory, group, None, tokens, False, predicted, left, tokens)

    def __repr__(self) -> str:
        return f"Unstarted({self.groups!r})"

    def __iter__(self) -> Iterator[str]:
        return chain.from_iterable(self.groups.values())

    def __len__(self) -> int:
        return sum(size * count for size, count in self._sizes.items())

    def values(self) -> ValuesView[TrajectoryView]:
        """The views, each created when it is read."""
        return _Views(self)


class _Views(ValuesView[TrajectoryView]):
    def __init__(self, waiting: Unstarted) -> None:
        super().__init__(waiting)
        self._waiting = waiting

    def __iter__(self) -> Iterator[TrajectoryView]:
        waiting = self._waiting
        for group, members in waiting.groups.items():
            predicted, left = waiting.predicted.get(group), waiting.left.get(group)
            tokens = waiting.tokens.get(group, 0)
            for name in members:
                yield TrajectoryView(name, group, None, tokens, False, predicted, left, tokens)


@record
class ReplicaView:
    """What policies know of a replica that is up.

    Args:
        version: the version that it serves, None before its first pull.
        pulling: whether a pull is under way.
        in_flight: trajectories that it owes: routed to it and not back, and those of its that environments answer now.
        capacity: most trajectories that it is given; see `places` for those that run.
        kv: share of the KV cache in use, 0 to 1, at the last snapshot.
        kv_before: `kv` at the previous periodic sample.
        kv_peak: the highest `kv` since it was last given work.
        waiting: trajectories queued inside the engine, at the last snapshot.
        fresh: whether its last snapshot shows every command that it was sent, so that its load may be planned with.
        running: trajectories in the decode batch, at the last snapshot.
        kv_capacity_tokens: tokens that its KV cache can hold; 0 if unknown.
        open: whether it may be given groups that have not started (axis sync).
        pinned: whether it runs an evaluation; then neither its weights nor its work may change.
        preemptions: times since it started that its engine took a trajectory's KV cache away, at the last snapshot.
        cells: the trainer's cells that stand on its devices, wholly or in part; empty where they have their own.
        trajectories: the trajectories in flight that it holds, in order of routing.
        pool: the pool of equal replicas that it belongs to; empty where all are alike.
        site: its datacenter; empty for the trainer's.
        in_environment: trajectories in flight whose last turn an environment answers. They hold no place and come back.
        max_running: most trajectories that its engine runs at once, as it says itself; 0 if it does not.
        kept: whether its devices are not lent within a round: a judge has a share of one of them, or stands on its cells.
    """

    replica: str
    version: int | None
    pulling: bool
    in_flight: int
    capacity: int
    kv: float
    kv_before: float
    kv_peak: float
    waiting: int
    fresh: bool
    running: int = 0
    kv_capacity_tokens: int = 0
    open: bool = True
    pinned: bool = False
    trajectories: Mapping[str, TrajectoryView] = field(default_factory=dict)
    preemptions: int = 0
    cells: tuple[int, ...] = ()
    pool: str = ""
    site: str = ""
    in_environment: int = 0
    max_running: int = 0
    kept: bool = False

    @property
    def places(self) -> int:
        """Most trajectories that it may be given so that all run: further ones would wait in its engine."""
        return min(self.capacity, self.max_running) if self.max_running else self.capacity

    @property
    def held(self) -> int:
        """Trajectories that have a place on it: in flight, and not in an environment."""
        return self.in_flight - self.in_environment


@dataclass(frozen=True, slots=True)
class Launch:
    """Start a group: one attempt at a prompt.

    Args:
        prompt: index in the prompt stream.
        samples: trajectories to launch.
        needed: number of trajectories with which the group is trained: the first to finish generating. The rest are surplus.
        round: number of the round that it belongs to, rising; None if the policy knows no rounds.
        kind: the kind of its round, such as ``"short"``; empty if the policy knows no rounds.
        draw: with the run's seed and the sample, the seed of its trajectories' noise; two groups of one `draw` have the same
            noise. None leaves the noise to the engine.
    """

    prompt: int
    samples: int
    needed: int
    round: int | None = None
    kind: str = ""
    draw: int | None = None


class GroupEnd(StrEnum):
    """How a group ended.

    TRAINED: it was trained on, and the checkpoint that holds it is durable.
    FILTERED: it was complete, but the batching policy did not keep it.
    SURPLUS: its batch had all the groups that it needs.
    DELAYED: it was not complete, and training waited for it longer than admission wants.
    EXPIRED: it was complete, but too old to be trained on within the bound.
    UNSCORED: its verifier failed too often, through no fault of a response.
    FAILED: an engine refused its prompt, or an environment did not answer.
    """

    TRAINED = "trained"
    FILTERED = "filtered"
    SURPLUS = "surplus"
    DELAYED = "delayed"
    EXPIRED = "expired"
    UNSCORED = "unscored"
    FAILED = "failed"


class PromptFate(StrEnum):
    """What becomes of the prompt of a group that ended: nothing more, or another group of it comes later."""

    DONE = "done"
    AGAIN = "again"


@record
class Candidate:
    """A complete group in the experience buffer, as a sampler sees it.

    Args:
        key: the group.
        version: the oldest version in it.
        order: place in the order of completion, from 0.
        rewards: one reward per trajectory.
        tokens: response tokens of all its trajectories.
    """

    key: int
    version: int
    order: int
    rewards: tuple[float, ...]
    tokens: int


@record
class Placement:
    """Route a trajectory of the pool to a replica.

    Args:
        reason: why there; with `Why.CHOSEN`, `gain` is the gain that the policy expects, `least` the least that it accepts.
    """

    trajectory: str
    replica: str
    reason: Reason = CHOSEN


class Placements(Sequence[Placement]):
    """Placements in which each group that starts goes whole to one replica. It creates each member when it is read.

    Args:
        singles: placements of single trajectories, which come first.
        groups: for each group that starts, its trajectories and its replica.
    """

    __slots__ = ("groups", "singles")

    def __init__(self, singles: Sequence[Placement], groups: Sequence[tuple[Sequence[str], str]]) -> None:
        self.singles = singles
        self.groups = groups

    def __repr__(self) -> str:
        return f"Placements({list(self)!r})"

    def __eq__(self, other: object) -> bool:
        return list(self) == list(other) if isinstance(other, Placements | list | tuple) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __len__(self) -> int:
        return len(self.singles) + sum([len(members) for members, _ in self.groups])

    def __iter__(self) -> Iterator[Placement]:
        yield from self.singles
        for members, replica in self.groups:
            for name in members:
                yield Placement(name, replica)

    @overload
    def __getitem__(self, index: int) -> Placement: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Placement]: ...
    def __getitem__(self, index: int | slice) -> Placement | Sequence[Placement]:
        return list(self)[index]


@dataclass(frozen=True, slots=True)
class Sync:
    """Have a replica pull the newest published version. Its trajectories are interrupted and go back to the pool."""

    replica: str
    reason: Reason = _POLICY


@dataclass(frozen=True, slots=True)
class Move:
    """Move every trajectory of a replica to another that serves the same version."""

    source: str
    destination: str


@dataclass(frozen=True, slots=True)
class Evict:
    """Interrupt trajectories of a replica; they go back to the pool."""

    replica: str
    trajectories: tuple[str, ...]
    reason: Reason = _POLICY
