"""Axis routing: which replica runs each trajectory of the pool. Entry-point group ``tailrace.routing``.

Round robin and least loaded walk the pool in order of age. A trajectory that was interrupted or lost its replica has a
version; it goes to any replica that may continue it, however full. A group that has not started goes whole to one open replica
that has room. If there is none, the group is skipped and later groups may still be placed.
"""

from __future__ import annotations

import sys
from abc import abstractmethod
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from tailrace.contracts import Cycle, Placement, Placements, ReplicaView, TentativeAdmission, TrajectoryView, Unstarted
from tailrace.repack.rooms import LoadHeap, Rooms


@dataclass(frozen=True, slots=True)
class RoundRobin:
    """Each replica in turn, in order of name. Plugin ``round-robin``.

    Each group that starts and each trajectory that resumes takes one turn; the first turn of a cycle is `cycle.routings`.
    """

    def route(self, cycle: Cycle) -> Sequence[Placement]:
        """Everything that a replica may take now."""
        return _place_all(cycle, _Turns(serving(cycle), cycle.routings))


@dataclass(frozen=True, slots=True)
class LeastLoaded:
    """The replica with the smallest share of its capacity in use. Plugin ``least-loaded``.

    Among equals, the one with the smallest share of its KV cache in use, then the first by name.
    """

    def route(self, cycle: Cycle) -> Sequence[Placement]:
        """Everything that a replica may take now."""
        return _place_all(cycle, LoadHeap(serving(cycle)))


def serving(cycle: Cycle) -> list[ReplicaView]:
    """The replicas that may be given work, in order of name."""
    found = [view for view in cycle.replicas if view.version is not None and not view.pulling]
    return sorted(found, key=lambda view: view.replica)


def queues(cycle: Cycle) -> Iterable[tuple[int | None, Mapping[str, TrajectoryView]]]:
    """The pool's queues, oldest version first, the one without a version last (StaleFlow, section 5.3)."""
    return sorted(cycle.pool.items(), key=lambda item: (item[0] is None, item[0] or 0))


class _Choice(Protocol):
    """How a replica is chosen among those that serve one of several versions."""

    replicas: Sequence[ReplicaView]

    @abstractmethod
    def anywhere(self, versions: Sequence[int]) -> str | None:
        """A replica for one trajectory that resumes."""

    @abstractmethod
    def with_room(self, versions: Sequence[int], count: int) -> tuple[str, int] | None:
        """An open replica for a group of `count` trajectories, and its version."""


def _place_all(cycle: Cycle, choice: _Choice) -> Placements:
    singles: list[Placement] = []
    whole: list[tuple[Sequence[str], str]] = []
    versions = sorted({view.version for view in choice.replicas if view.version is not None})
    if not versions:
        return Placements((), ())
    for version, queue in queues(cycle):
        if version is None:
            whole = _place_groups(queue, cycle.admits.fork(), versions, choice)
            continue
        exact, newer = [version] if version in versions else [], versions[bisect_left(versions, version) :]
        for view in queue.values():
            allowed = exact if view.exact else newer
            replica = choice.anywhere(allowed) if allowed else None
            if replica is not None:
                singles.append(Placement(view.trajectory, replica))
    return Placements(singles, whole)


def _place_groups(
    queue: Mapping[str, TrajectoryView],
    admits: TentativeAdmission,
    versions: Sequence[int],
    choice: _Choice,
) -> list[tuple[Sequence[str], str]]:
    """Place groups that have not started. Room and admission only shrink, so a group that was skipped is not tried again."""
    placed: list[tuple[Sequence[str], str]] = []
    groups, smallest = by_group(queue)
    allowed = [version for version in versions if admits.allows(version)]
    refused = sys.maxsize
    for group, members in groups.items():
        count = len(members)
        if count >= refused:
            continue
        found = choice.with_room(allowed, count) if allowed else None
        if found is None:
            refused = count
            if smallest >= refused:
                break
            continue
        replica, version = found
        admits.take(group, version)
        allowed = [version for version in allowed if admits.allows(version)]
        placed.append((members, replica))
    return placed


def by_group(queue: Mapping[str, TrajectoryView]) -> tuple[Mapping[int, Sequence[str]], int]:
    """The members of each waiting group, in order of arrival, and the size of the smallest group."""
    if isinstance(queue, Unstarted):
        return queue.groups, queue.smallest
    groups: dict[int, list[str]] = {}
    for view in queue.values():
        groups.setdefault(view.group, []).append(view.trajectory)
    return groups, min(map(len, groups.values()), default=0)


class _Turns(Rooms):
    def __init__(self, replicas: Sequence[ReplicaView], turn: int) -> None:
        super().__init__(replicas)
        self._turn = turn
        self._rings: dict[tuple[int, ...], list[int]] = {}
        self._open: dict[tuple[int, ...], list[int]] = {}  # places in a ring

    def anywhere(self, versions: Sequence[int]) -> str | None:
        ring = self._ring(tuple(versions))
        return self._give(ring[self._turn % len(ring)], 1)[0] if ring else None

    def with_room(self, versions: Sequence[int], count: int) -> tuple[str, int] | None:
        key = tuple(versions)
        ring = self._ring(key)
        places = self._open[key]
        if not places:
            return None
        first = bisect_left(places, self._turn % len(ring))
        for step in range(len(places)):
            index = ring[places[(first + step) % len(places)]]
            if self.has_room(index, count):
                return self._give(index, count)
        return None

    def _ring(self, key: tuple[int, ...]) -> list[int]:
        ring = self._rings.get(key)
        if ring is None:
            ring = self._rings[key] = [index for index, view in enumerate(self.replicas) if view.version in key]
            self._open[key] = [place for place, index in enumerate(ring) if self.replicas[index].open]
        return ring

    def _give(self, index: int, count: int) -> tuple[str, int]:
        self._turn += 1
        self.held[index] += count
        view = self.replicas[index]
        assert view.version is not None
        return view.replica, view.version
