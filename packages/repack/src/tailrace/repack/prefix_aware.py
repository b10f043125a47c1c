"""Routing that sees prefix caches: tokens of prefill that a cache saves, against the load where it is. Plugin ``prefix-aware``.

A trajectory that comes back (an environment answered its turn, it was interrupted, it lost its replica) costs a replica

    tokens that its prefix cache does not have  +  place_tokens x trajectories that it holds

and goes where that is least: as NVIDIA Dynamo's KV router weighs blocks to prefill against blocks that are decoded. So it goes
back to a cache that is worth it, and to nobody in particular where none is. Sticky routing is the limit of 0 `place_tokens`,
`least-loaded` that of infinitely many.

The trajectories of a group share their prompt, which the first of them on a replica prefills. A group starts where and when it
would with `least-loaded`, all of it at once and at one version. Its other trajectories then go where they cost least: to those
before them, or, where these crowd a replica for more than the prompt is worth, to another open one that has room.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

from tailrace.contracts import (
    CHOSEN,
    Cycle,
    Placement,
    Reason,
    ReplicaView,
    RoutingPolicy,
    TentativeAdmission,
    TrajectoryView,
    Tried,
    Unstarted,
    Why,
)
from tailrace.repack.errors import LoadError
from tailrace.repack.routing import LoadHeap, queues, serving, started_groups


@dataclass(frozen=True, slots=True)
class PrefixAware(RoutingPolicy):
    """A trajectory goes where its prefill and the load there cost least together. Plugin ``prefix-aware``.

    With the cost model of decoding (`ThroughputModel`), one more trajectory of T tokens slows each of L more steps by
    k1 T + k3 at most. With p seconds to prefill a token, it is worth (k1 T + k3) L / p `place_tokens`. What is right for a run
    grows with the tokens of a turn, and is small where contexts are long and turns are short.

    Args:
        place_tokens: tokens of prefill that one trajectory more or less on a replica is worth. Where replicas have different
            capacities, one on the largest; on another it is worth as many more as its share of the capacity is larger.

    Raises:
        LoadError: it is below 0 or not finite.
    """

    place_tokens: Annotated[float, Tried((0.0, 30.0, 2_000.0))] = 512.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.place_tokens) and self.place_tokens >= 0):
            raise LoadError(f"found place_tokens={self.place_tokens!r}, expected a finite number of at least 0")

    def plans_tokens(self) -> bool:
        """What a cache saves of a group is its prompt."""
        return True

    def sees_prefixes(self) -> bool:
        """It does."""
        return True

    def route(self, cycle: Cycle) -> Sequence[Placement]:
        """Everything that a replica may take now."""
        replicas, placed = serving(cycle), list[Placement]()
        if not replicas:
            return placed
        costs = _Costs(replicas, self.place_tokens)
        versions = sorted({view.version for view in replicas if view.version is not None})
        for version, queue in queues(cycle):
            if version is None:
                placed += _groups(queue, cycle.admits.fork(), versions, costs)
                continue
            exact, newer = [version] if version in versions else [], versions[bisect_left(versions, version) :]
            for view in queue.values():
                if allowed := exact if view.exact else newer:
                    index, reason = costs.cheapest(allowed, cycle.prefixes(view))
                    placed.append(Placement(view.trajectory, replicas[index].replica, reason))
        return placed


class _Costs(LoadHeap):
    """What a trajectory costs each replica, in tokens of prefill."""

    def __init__(self, replicas: Sequence[ReplicaView], place_tokens: float) -> None:
        super().__init__(replicas)
        self._full = place_tokens * max(view.capacity for view in replicas)
        self._index = {view.replica: index for index, view in enumerate(replicas)}

    def load(self, index: int) -> float:
        """What the trajectories that a replica holds count as."""
        return self._full * self.entry(index)[0]

    def cheapest(self, versions: Sequence[int], cached: Mapping[str, int]) -> tuple[int, Reason]:
        """Where one trajectory costs least, which is then given there, and why.

        Args:
            versions: those that it may run at, each of which somebody serves.
            cached: the tokens of it that caches have, by replica.
        """
        least = min(self.least(version) for version in versions)[2]
        having = {
            index: tokens
            for name, tokens in cached.items()
            if (index := self._index.get(name)) is not None and self.replicas[index].version in versions
        }
        return self._give(least, having)

    def first_with_room(self, versions: Sequence[int], count: int) -> tuple[int, int] | None:
        """The least loaded replica with room for a group of `count`, which is given its first trajectory, and its version."""
        found = [entry for version in versions if (entry := self.least_with_room(version, count)) is not None]
        if not found:
            return None
        first = min(found)[2]
        version = self.replicas[first].version
        assert version is not None
        self.give(first, 1)
        return first, version

    def sibling(self, version: int, prompt: int, siblings: Sequence[int]) -> tuple[int, Reason]:
        """The same for another trajectory of a group that starts.

        Args:
            siblings: the replicas that its others were given to. If none has room, it goes to the first.
        """
        entry = self.least_with_room(version, 1)
        if entry is None:
            self.give(siblings[0], 1)
            return siblings[0], CHOSEN
        return self._give(entry[2], {index: prompt for index in siblings if self.has_room(index, 1)})

    def _give(self, least: int, having: Mapping[int, int]) -> tuple[int, Reason]:
        """Choose between the replica with the least load and those that have tokens of a trajectory."""
        loads = {index: self.load(index) for index in (least, *having)}

        def costs(index: int) -> tuple[float, object]:
            return loads[index] - having.get(index, 0), self.entry(index)

        chosen, reason = min(loads, key=costs), CHOSEN
        kept = min((index for index in having if having[index]), key=costs, default=None)
        if kept is not None:
            numbers = {"saved": float(having[kept]), "costs": loads[kept] - loads[least]}
            crowded = chosen != kept
            reason = Reason(
                Why.CROWDED if crowded else Why.CACHED, self.replicas[kept].replica if crowded else "", numbers
            )
        self.give(chosen, 1)
        return chosen, reason


def _groups(
    queue: Mapping[str, TrajectoryView], admits: TentativeAdmission, versions: Sequence[int], costs: _Costs
) -> list[Placement]:
    """Place groups that have not started."""
    placed: list[Placement] = []
    for group, members, first, version in started_groups(queue, admits, versions, costs.first_with_room):
        placed += _members(members, first, version, _prompt(queue, group, members), costs)
    return placed


def _members(members: Sequence[str], first: int, version: int, prompt: int, costs: _Costs) -> list[Placement]:
    """Place a group whose first trajectory is given to a replica. Where all are there, nothing but that is to be explained."""
    where, siblings = [(first, CHOSEN)], {first: None}
    for _ in members[1:]:
        where.append(costs.sibling(version, prompt, list(siblings)))
        siblings[where[-1][0]] = None
    split = len(siblings) > 1
    return [
        Placement(name, costs.replicas[index].replica, reason if split else CHOSEN)
        for name, (index, reason) in zip(members, where, strict=True)
    ]


def _prompt(queue: Mapping[str, TrajectoryView], group: int, members: Sequence[str]) -> int:
    """Tokens of a group's prompt; 0 if they are not known."""
    return queue.tokens.get(group, 0) if isinstance(queue, Unstarted) else queue[members[0]].prompt_tokens
