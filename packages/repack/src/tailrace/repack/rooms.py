"""What replicas hold while a routing policy plans, and which of them has least to do."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush

from tailrace.contracts import ReplicaView


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
        index = min(self._top(version) for version in versions)[2]
        self.give(index, 1)
        return self.replicas[index].replica

    def with_room(self, versions: Sequence[int], count: int) -> tuple[str, int] | None:
        """The open replica that has least to do of those with room for `count` trajectories, and its version."""
        found = [entry for version in versions if (entry := self._top_with_room(version, count)) is not None]
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

    def _top(self, version: int) -> Entry:
        heap = self._heaps[version]
        while heap[0][3] != self.held[heap[0][2]]:
            heappop(heap)
        return heap[0]

    def _top_with_room(self, version: int, count: int) -> Entry | None:
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
