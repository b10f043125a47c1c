"""The replica that gains most by a trajectory, exactly, without asking every replica.

Replicas that serve one version and run equally many trajectories n form a class, in ascending order of their KV cache. With
D the latency of a step now and a what the trajectory adds to it, the gain of equation 3 is

    h(n, a, D) = (n + 1) / (D + a) - n / D = (D - n a) / (D (D + a)).

* It rises with D up to a (n + sqrt(n^2 + n)) and falls from there: the best of a class is one of the two replicas beside that
  point, which a bisection finds.
* It falls with n and with a, and a does not fall with n. So h at the best D that a class might have bounds this class and
  all with more trajectories: the search goes upwards in n and stops when they cannot beat what was found.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass, field

from tailrace.contracts import ReplicaView
from tailrace.repack.throughput import ThroughputModel

# (tokens in the KV cache, place in the order of names)
_Member = tuple[int, int]
# Place in the order, members; what they have in common: trajectories, KV budget, whether they are open; latency of matrix
# multiplication now and with one more, best D over a.
_Class = tuple[int, list[_Member], int, float, bool, float, float, float]

_REFRESH = 256


def planned_with(view: ReplicaView) -> bool:
    """Whether a replica's load is known and settled, so that work may be planned for it or taken from it."""
    return view.fresh and view.version is not None and not view.pulling and not view.pinned


def kv_tokens(view: ReplicaView) -> int:
    """Tokens in a replica's KV cache: the share in use, or what its trajectories hold if its size is unknown."""
    if view.kv_capacity_tokens:
        return round(view.kv * view.kv_capacity_tokens)
    return sum(trajectory.tokens for trajectory in view.trajectories.values())


@dataclass(slots=True)
class _Group:
    """The replicas of one version.

    Args:
        classes: by place in the order, which ascends in the number of trajectories.
        order: the same classes, in order.
        least_kv: no member's KV cache is smaller.
        refused: lengths, and whether only open replicas counted, that nothing is gained enough by until something changes.
        size: replicas, those included that can take nothing more.
    """

    classes: dict[int, _Class] = field(default_factory=dict)
    order: list[_Class] = field(default_factory=list)
    least_kv: int = 0
    refused: set[tuple[int, bool]] = field(default_factory=set)
    size: int = 0

    def refresh(self) -> None:
        """Find the least KV cache again; between refreshes it is only known to be no greater."""
        self.least_kv = min((members[0][0] for _, members, *_ in self.order), default=0)


class GainIndex:
    """Replicas by version, with what they run, to be searched for the largest marginal gain.

    What is done to it after `mark` can be undone by `rollback`.

    Args:
        model: with k1 in seconds for each token.
        views: replicas that can be planned with, in order of name.
    """

    def __init__(self, model: ThroughputModel, views: Sequence[ReplicaView]) -> None:
        self.views = views
        self._k1, self._k2, self._k3, self._k4 = model.k1, model.k2, model.k3, model.k4
        self._slack = 1e-9 / (max(model.k2, model.k3) + model.k4)
        self._version = [-1 if view.version is None else view.version for view in views]
        self._running = [view.running for view in views]
        self._kv = [kv_tokens(view) for view in views]
        # The most that may run there before one more: nothing may while something waits.
        self._limit = [0 if view.waiting else view.capacity for view in views]
        kinds: dict[tuple[float, bool], int] = {}
        self._kind = [
            kinds.setdefault((float(view.kv_capacity_tokens or math.inf), view.open), len(kinds)) for view in views
        ]
        self._kinds = list(kinds)
        self._shapes: dict[int, tuple[float, float, float]] = {}
        self._log: list[tuple[int, int, int, int, int]] | None = None
        self._changes = 0
        self._groups: dict[int, _Group] = {}
        for index, version in enumerate(self._version):
            self._group(version).size += 1
            if self._running[index] < self._limit[index]:
                self._class(self._groups[version], index)[1].append((self._kv[index], index))
        for group in self._groups.values():
            for _, members, *_ in group.order:
                members.sort()
            group.refresh()

    def versions(self) -> list[int]:
        """Versions that some replica serves, oldest first."""
        return sorted(version for version, group in self._groups.items() if group.size)

    def best(self, version: int, length: int, least: float, opened: bool) -> tuple[float, int]:
        """The largest gain among the replicas of a version, and whose it is: the first by name of equals.

        Args:
            least: gains below it do not matter: another one may be found instead of the largest if both are below.
            opened: only replicas that are open count.

        Returns:
            Minus infinity and -1 if none matters, or it would have to wait at each of them.
        """
        best, chosen = -math.inf, -1
        k1, k4 = self._k1, self._k4
        group = self._groups[version]
        floor, added, least_kv = least - self._slack, k1 * length, group.least_kv
        for _, members, running, budget, is_open, now, then, peak in group.order:
            rise = added + then - now
            top = rise * peak
            lowest = k1 * least_kv + now + k4
            if top < lowest:
                top = lowest
            if (top - running * rise) / (top * (top + rise)) < floor:
                break
            if opened and not is_open:
                continue
            end = len(members)
            if members[-1][0] + length > budget:
                end = bisect_left(members, (budget - length + 1, -1))
                if not end:
                    continue
            kv, index = members[0]
            if top > lowest or not k1:
                if not k1:
                    index = min(index for _, index in members[:end])
                elif (turn := (top - now - k4) / k1) > kv:
                    # The peak is at `turn` tokens: the best are the last below it and the first from it on.
                    place = bisect_left(members, (turn, -1), 0, end)
                    kv, index = members[bisect_left(members, (members[place - 1][0], -1), 0, place)]
                    if place < end:
                        above, other = members[place]
                        gain = (running + 1) / (k1 * (above + length) + then + k4) - running / (k1 * above + now + k4)
                        if gain > best or (gain == best and other < chosen):
                            best, chosen = gain, other
            gain = (running + 1) / (k1 * (kv + length) + then + k4) - running / (k1 * kv + now + k4)
            if gain > best or (gain == best and index < chosen):
                best, chosen = gain, index
            if best - self._slack > floor:
                floor = best - self._slack
        return best, chosen

    def best_at_least(self, version: int, length: int, least: float, opened: bool) -> tuple[float, int] | None:
        """As `best`, but None if the gain is below `least`, which must follow from the length. Refusals are remembered."""
        refused = self._groups[version].refused
        if (length, opened) in refused:
            return None
        found = self.best(version, length, least, opened)
        if found[0] >= least:
            return found
        refused.add((length, opened))
        return None

    def bound(self, running: int, kv: int, length: int) -> float:
        """No replica that runs at least so many trajectories, with at least so many tokens, gains more by a trajectory."""
        now, then, peak = self._shape(running)
        rise = self._k1 * length + then - now
        top = max(rise * peak, self._k1 * kv + now + self._k4)
        return (top - running * rise) / (top * (top + rise)) + self._slack

    def reachable(self, version: int, length: int, least: float) -> bool:
        """Whether a replica of a version might gain `least`, as they are or however much more they are given."""
        group = self._groups[version]
        return bool(group.order) and self.bound(group.order[0][2], group.least_kv, length) >= least

    def give(self, index: int, length: int) -> None:
        """A trajectory that fits goes to a replica."""
        self._set(index, self._version[index], self._running[index] + 1, self._kv[index] + length, self._limit[index])

    def empty(self, index: int, version: int) -> None:
        """A replica has pulled a version and holds nothing."""
        self._set(index, version, 0, 0, self.views[index].capacity)

    def mark(self) -> None:
        """A point to come back to."""
        self._log = []

    def rollback(self) -> None:
        """Undo everything since the mark."""
        log, self._log = self._log or [], None
        for change in reversed(log):
            self._set(*change)

    def _set(self, index: int, version: int, running: int, kv: int, limit: int) -> None:
        before, had, held, could = self._version[index], self._running[index], self._kv[index], self._limit[index]
        if self._log is not None:
            self._log.append((index, before, had, held, could))
        group = self._groups[before]
        group.refused.clear()
        if had < could:
            place = had * len(self._kinds) + self._kind[index]
            members = group.classes[place][1]
            if len(members) > 1:
                del members[bisect_left(members, (held, index))]
            else:
                del group.classes[place], group.order[bisect_left(group.order, (place,))]
        if version != before:
            group.size -= 1
            group = self._group(version)
            group.size += 1
            group.refused.clear()
            self._version[index] = version
        self._running[index], self._kv[index], self._limit[index] = running, kv, limit
        if running < limit:
            insort(self._class(group, index)[1], (kv, index))
        if kv < group.least_kv:
            group.least_kv = kv
        self._changes += 1
        if self._changes % _REFRESH == 0:
            group.refresh()

    def _group(self, version: int) -> _Group:
        group = self._groups.get(version)
        if group is None:
            group = self._groups[version] = _Group()
        return group

    def _class(self, group: _Group, index: int) -> _Class:
        """The class that a replica belongs to, made if it is the first."""
        running, kind = self._running[index], self._kind[index]
        place = running * len(self._kinds) + kind
        found = group.classes.get(place)
        if found is None:
            found = group.classes[place] = (place, [], running, *self._kinds[kind], *self._shape(running))
            insort(group.order, found)
        return found

    def _shape(self, running: int) -> tuple[float, float, float]:
        """What depends on the trajectories alone: latency of matrix multiplication now and with one more, best D over a."""
        shape = self._shapes.get(running)
        if shape is None:
            now, then = max(self._k2, self._k3 * running), max(self._k2, self._k3 * (running + 1))
            shape = self._shapes[running] = (now, then, running + math.sqrt(running * running + running))
        return shape
