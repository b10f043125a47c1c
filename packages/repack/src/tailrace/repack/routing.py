"""Axis routing: which replica runs each trajectory of the pool. Entry-point group ``tailrace.routing``.

Round robin and least loaded walk the pool in order of age. A trajectory that was interrupted or lost its replica has a
version; it goes to any replica that may continue it, however full. A group that has not started goes whole to one open replica
that has room. If there is none, the group is skipped and later groups may still be placed.
"""

from __future__ import annotations

import sys
from abc import abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Protocol, TypeVar

from tailrace.contracts import (
    Cycle,
    Placement,
    Placements,
    ReplicaView,
    RoutingPolicy,
    TentativeAdmission,
    TrajectoryView,
    Unstarted,
)

_R = TypeVar("_R")


class Rooms:
    """How many trajectories each replica holds by now, and for how many more an open one has room."""

    def __init__(self, replicas: Sequence[ReplicaView]) -> None:
        self.replicas = replicas
        self.held = [view.held for view in replicas]

    def has_room(self, index: int, count: int) -> bool:
        """Whether a group fits. One larger than a replica's capacity fits an empty replica, or it would wait for ever."""
        view = self.replicas[index]
        return view.open and (self.held[index] + count <= view.capacity or self.held[index] == 0)


Entry = tuple[float, float, int, int]
"""What a replica has to do, the share of its KV cache in use, its index, and the trajectories that it held then."""


class LoadHeap(Rooms):
    """Which replica has least to do: a heap for each version. An entry is out of date if the replica was given work since."""

    def __init__(self, replicas: Sequence[ReplicaView]) -> None:
        super().__init__(replicas)
        self._heaps: dict[int | None, list[Entry]] = {}
        for index, view in enumerate(replicas):
            self._heaps.setdefault(view.version, []).append(self.entry(index))
        for heap in self._heaps.values():
            heapify(heap)
        self._refused: dict[int, int] = {}

    def anywhere(self, versions: Sequence[int]) -> str | None:
        """The replica that has least to do, for one trajectory that resumes. There is one of each version."""
        index = min(self.least(version) for version in versions)[2]
        self.give(index, 1)
        return self.replicas[index].replica

    def with_room(self, versions: Sequence[int], count: int) -> tuple[str, int] | None:
        """The open replica that has least to do of those with room for `count` trajectories, and its version."""
        found = [entry for version in versions if (entry := self.least_with_room(version, count)) is not None]
        if not found:
            return None
        index = min(found)[2]
        self.give(index, count)
        view = self.replicas[index]
        assert view.version is not None
        return view.replica, view.version

    def entry(self, index: int) -> Entry:
        """What a replica has to do: by default, the share of its capacity in use."""
        view, held = self.replicas[index], self.held[index]
        return held / max(1, view.capacity), view.kv, index, held

    def give(self, index: int, count: int) -> None:
        """Note that a replica is given so many trajectories."""
        self.held[index] += count
        heappush(self._heaps[self.replicas[index].version], self.entry(index))

    def least(self, version: int) -> Entry:
        """The entry of the replica of a version that has least to do; there is one of the version."""
        heap = self._heaps[version]
        while heap[0][3] != self.held[heap[0][2]]:
            heappop(heap)
        return heap[0]

    def least_with_room(self, version: int, count: int) -> Entry | None:
        """The entry of the open replica of a version with room for so many that has least to do; None: there is none."""
        # Room only shrinks: a count that was refused once stays refused.
        if count >= self._refused.get(version, count + 1):
            return None
        heap, aside, found = self._heaps[version], [], None
        while heap and found is None:
            entry = heappop(heap)
            if entry[3] == self.held[entry[2]]:
                aside.append(entry)
                if self.has_room(entry[2], count):
                    found = entry
        for entry in aside:
            heappush(heap, entry)
        if found is None:
            self._refused[version] = count
        return found


def may_run_at(version: int, cycle: Cycle, *, opened: bool) -> bool:
    """Whether any trajectory of the pool may run on a replica that serves a version (Algorithm 2).

    Asking admission changes nothing: a group gets its version only when its first trajectory is routed.

    Args:
        version: the version that the replica serves.
        cycle: the pool and admission.
        opened: whether the replica may be given groups that have not started.
    """
    for oldest, queue in cycle.pool.items():
        if not queue:
            continue
        if oldest is None:
            if opened and cycle.admits.allows(version):
                return True
        elif oldest == version or (oldest < version and any(not view.exact for view in queue.values())):
            return True
    return False


@dataclass(frozen=True, slots=True)
class RoundRobin(RoutingPolicy):
    """Each replica in turn, in order of name. Plugin ``round-robin``.

    Each group that starts and each trajectory that resumes takes one turn; the first turn of a cycle is `cycle.routings`.
    """

    def route(self, cycle: Cycle) -> Sequence[Placement]:
        """Everything that a replica may take now."""
        return _place_all(cycle, _Turns(serving(cycle), cycle.routings))


@dataclass(frozen=True, slots=True)
class LeastLoaded(RoutingPolicy):
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
            started = started_groups(queue, cycle.admits.fork(), versions, choice.with_room)
            whole = [(members, replica) for _, members, replica, _ in started]
            continue
        exact, newer = [version] if version in versions else [], versions[bisect_left(versions, version) :]
        for view in queue.values():
            allowed = exact if view.exact else newer
            replica = choice.anywhere(allowed) if allowed else None
            if replica is not None:
                singles.append(Placement(view.trajectory, replica))
    return Placements(singles, whole)


def started_groups(
    queue: Mapping[str, TrajectoryView],
    admits: TentativeAdmission,
    versions: Sequence[int],
    with_room: Callable[[Sequence[int], int], tuple[_R, int] | None],
) -> Iterator[tuple[int, Sequence[str], _R, int]]:
    """Groups that start now: group, members, replica and version.

    Room and admission only shrink, so a group that found no room is not tried again, nor is one that is as large.

    Args:
        queue: trajectories that have not started, by name, in order of arrival.
        admits: takes each group that starts, before the next one is looked at.
        versions: versions that somebody serves.
        with_room: gives a group of so many trajectories to a replica of one of these versions, if one has room.
    """
    groups, smallest = by_group(queue)
    allowed = [version for version in versions if admits.allows(version)]
    refused = sys.maxsize
    for group, members in groups.items():
        count = len(members)
        if count >= refused:
            continue
        found = with_room(allowed, count) if allowed else None
        if found is None:
            refused = count
            if smallest >= refused:
                break
            continue
        replica, version = found
        admits.take(group, version)
        allowed = [version for version in allowed if admits.allows(version)]
        yield group, members, replica, version


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
