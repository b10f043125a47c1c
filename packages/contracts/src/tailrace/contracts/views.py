"""What policies see and answer: the state of the run, replicas and the pool, and the decisions taken over them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, ValuesView
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import chain
from typing import overload

from tailrace.contracts.reasons import CHOSEN, Reason, Why
from tailrace.contracts.record import record

_POLICY = Reason(Why.POLICY)


@record
class Progress:
    """How far the run is. Counts are groups.

    Args:
        version: the trainer's version.
        published: the newest version that replicas may pull.
        admitted: started so far.
        generating: admitted and not complete.
        buffered: complete and not consumed.
        consumed: trained on.
        dropped: filtered or failed.
        batch_groups: groups in one batch.
        last_version: the version at which the run ends.
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


@record
class TrajectoryView:
    """A trajectory that waits in the pool or runs on a replica.

    Args:
        version: the oldest version that it may be generated with (V_traj of StaleFlow, section 4.1); None until its group
            has started.
        tokens: prompt and response tokens so far, as far as they are known.
        exact: its tokens must all come from `version`; otherwise any newer version may continue it (partial rollout).
    """

    trajectory: str
    group: int
    version: int | None = None
    tokens: int = 0
    exact: bool = False


Pool = Mapping[int | None, Mapping[str, TrajectoryView]]
"""Trajectories that wait for a replica, by version: oldest first, those that have none last; then in order of arrival.

Those that have none may come as `Unstarted`, which knows them by group.
"""


class Unstarted(Mapping[str, TrajectoryView]):
    """Groups that have not started, in order of arrival: the last level of a pool.

    A mapping like every other level, whose views are made when they are looked at. A policy that places whole groups reads
    `groups` instead: there may be tens of thousands of trajectories, and nothing distinguishes those of a group.
    """

    __slots__ = ("_index", "_sizes", "groups")

    def __init__(self) -> None:
        self.groups: dict[int, Sequence[str]] = {}
        self._sizes: dict[int, int] = {}
        self._index: dict[str, int] | None = None

    @property
    def smallest(self) -> int:
        """Trajectories of the smallest group; 0 if there is none."""
        return min(self._sizes, default=0)

    def add(self, group: int, members: Sequence[str]) -> None:
        """A group arrives."""
        self.groups[group] = members
        self._sizes[len(members)] = self._sizes.get(len(members), 0) + 1
        self._index = None

    def remove(self, group: int) -> None:
        """A group starts, or is dropped.

        Raises:
            KeyError: it is not here.
        """
        size = len(self.groups.pop(group))
        self._sizes[size] -= 1
        if not self._sizes[size]:
            del self._sizes[size]
        self._index = None

    def __getitem__(self, trajectory: str) -> TrajectoryView:
        if self._index is None:
            self._index = {name: group for group, members in self.groups.items() for name in members}
        return TrajectoryView(trajectory, self._index[trajectory])

    def __repr__(self) -> str:
        return f"Unstarted({self.groups!r})"

    def __iter__(self) -> Iterator[str]:
        return chain.from_iterable(self.groups.values())

    def __len__(self) -> int:
        return sum(size * count for size, count in self._sizes.items())

    def values(self) -> ValuesView[TrajectoryView]:
        """The views, each made when its turn comes."""
        return _Views(self)


class _Views(ValuesView[TrajectoryView]):
    def __init__(self, waiting: Unstarted) -> None:
        super().__init__(waiting)
        self._groups = waiting.groups

    def __iter__(self) -> Iterator[TrajectoryView]:
        return (TrajectoryView(name, group) for group, members in self._groups.items() for name in members)


@record
class ReplicaView:
    """What policies know of a replica that is up.

    Args:
        version: the version that it serves, None before its first pull.
        pulling: a pull is under way.
        in_flight: trajectories that were routed to it and have not come back.
        capacity: trajectories that one batch of it holds.
        kv: share of the KV cache in use, 0 to 1, at the last snapshot.
        kv_before: the same at the previous periodic sample.
        kv_peak: the highest since it was last given work.
        waiting: trajectories queued inside the engine, at the last snapshot.
        fresh: a snapshot has arrived that shows every command it was sent: its load can be planned with.
        running: trajectories in the decode batch, at the last snapshot.
        kv_capacity_tokens: tokens that its KV cache holds; 0 if unknown.
        open: it may be given groups that have not started (axis sync).
        pinned: it answers an evaluation: its weights and its work stay where they are.
        trajectories: what is in flight, in order of routing.
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


@dataclass(frozen=True, slots=True)
class Launch:
    """Start a group: one attempt at a prompt.

    Args:
        prompt: index in the prompt stream.
        samples: trajectories to launch.
        needed: scored trajectories that complete the group; the rest are surplus.
    """

    prompt: int
    samples: int
    needed: int


class GroupEnd(StrEnum):
    """How a group ended.

    TRAINED: it was trained on, and the checkpoint that holds it is durable.
    FILTERED: complete, and not worth training on.
    SURPLUS: its batch had all the groups that it needs.
    EXPIRED: complete, but too old to be trained on within the bound.
    FAILED: a verifier broke too often.
    """

    TRAINED = "trained"
    FILTERED = "filtered"
    SURPLUS = "surplus"
    EXPIRED = "expired"
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
        order: completion order, from 0.
        rewards: one per trajectory.
        tokens: response tokens over all trajectories.
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
        reason: why there; with `Why.CHOSEN`, `gain` is what the policy expects of it and `least` what it asked for at least.
    """

    trajectory: str
    replica: str
    reason: Reason = CHOSEN


class Placements(Sequence[Placement]):
    """Placements in which groups that start go whole: a sequence like any other, whose members are made when looked at.

    Args:
        singles: trajectories one by one, which come first.
        groups: the trajectories of each group that starts, with its replica.
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
    """Have a replica pull the newest published version; what runs there is interrupted and goes back to the pool."""

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
