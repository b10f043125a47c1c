"""The replica that gains most by a trajectory, exactly, without asking every replica.

Replicas that serve one version and run equally many trajectories n form a class, in ascending order of their KV cache. With
D the latency of a step now and a what the trajectory adds to it, the gain of equation 3 is

    (n + 1) / (D + a) - n / D = (D - n a) / (D (D + a)),

which rises with D up to a (n + sqrt(n^2 + n)) and falls from there. So the best of a class is one of the two replicas
beside that point, which a bisection finds, and there are about as many classes as different numbers of trajectories.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Sequence

from tailrace.contracts import ReplicaView
from tailrace.repack.throughput import ThroughputModel

# (tokens in the KV cache, place in the order of names)
_Member = tuple[int, int]
# members, trajectories, KV budget, latency of matrix multiplication now and with one more, open, peak of D over a
_Class = tuple[list[_Member], int, float, float, float, bool, float]
_Key = tuple[int, float, bool]


def planned_with(view: ReplicaView) -> bool:
    """Whether a replica's load is known and settled, so that work may be planned for it or taken from it."""
    return view.fresh and view.version is not None and not view.pulling and not view.pinned


def kv_tokens(view: ReplicaView) -> int:
    """Tokens in a replica's KV cache: the share in use, or what its trajectories hold if its size is unknown."""
    if view.kv_capacity_tokens:
        return round(view.kv * view.kv_capacity_tokens)
    return sum(trajectory.tokens for trajectory in view.trajectories.values())


class GainIndex:
    """Replicas by version, with what they run, to be searched for the largest marginal gain.

    What is done to it can be undone: see `mark` and `rollback`.

    Args:
        model: with k1 in seconds for each token.
        views: replicas that can be planned with, in order of name.
    """

    def __init__(self, model: ThroughputModel, views: Sequence[ReplicaView]) -> None:
        self.model = model
        self._k1, self._k2, self._k3, self._k4 = model.k1, model.k2, model.k3, model.k4
        self.views = views
        self._budgets = [float(view.kv_capacity_tokens or math.inf) for view in views]
        self._version: list[int] = []
        self._running: list[int] = []
        self._kv: list[int] = []
        self._waits: list[bool] = []
        self._groups: dict[int, dict[_Key, _Class]] = {}
        self._sizes: dict[int, int] = {}
        self._refused: dict[int, set[tuple[int, bool]]] = {}
        self._log: list[tuple[int, int, int, int, bool]] = []
        members: dict[int, dict[_Key, list[_Member]]] = {}
        for index, view in enumerate(views):
            assert view.version is not None
            kv = kv_tokens(view)
            self._version.append(view.version)
            self._running.append(view.running)
            self._kv.append(kv)
            self._waits.append(view.waiting > 0)
            self._sizes[view.version] = self._sizes.get(view.version, 0) + 1
            group = members.setdefault(view.version, {})
            if not view.waiting and view.running < view.capacity:
                group.setdefault((view.running, self._budgets[index], view.open), []).append((kv, index))
        for version, group in members.items():
            self._groups[version] = {key: self._class(key, sorted(found)) for key, found in group.items()}
            self._refused[version] = set()

    def versions(self) -> list[int]:
        """Versions that some replica serves, oldest first."""
        return sorted(version for version, size in self._sizes.items() if size)

    def best(self, version: int, length: int, opened: bool) -> tuple[float, int]:
        """The largest gain among the replicas of a version, and whose it is: the first by name of equals.

        Args:
            opened: only replicas that are open count.

        Returns:
            Minus infinity and -1 if it would have to wait at each of them.
        """
        best, chosen = -math.inf, -1
        k1, k4 = self._k1, self._k4
        for members, running, budget, now, then, is_open, peak in self._groups[version].values():
            if opened and not is_open:
                continue
            end = len(members)
            if members[-1][0] + length > budget:
                end = bisect_left(members, (budget - length + 1, -1))
                if not end:
                    continue
            if not k1:
                kv, index = members[min(range(end), key=lambda place: members[place][1])]
            else:
                kv, index = members[0]
                turn = ((k1 * length + then - now) * peak - now - k4) / k1
                if turn > kv:
                    # The peak is at `turn` tokens: the best are the last below it and the first from it on.
                    place = bisect_left(members, (turn, -1), 0, end)
                    below = members[place - 1][0]
                    kv, index = members[bisect_left(members, (below, -1), 0, place)]
                    if place < end:
                        above, other = members[place]
                        gain = (running + 1) / (k1 * (above + length) + then + k4) - running / (k1 * above + now + k4)
                        if gain > best or (gain == best and other < chosen):
                            best, chosen = gain, other
            gain = (running + 1) / (k1 * (kv + length) + then + k4) - running / (k1 * kv + now + k4)
            if gain > best or (gain == best and index < chosen):
                best, chosen = gain, index
        return best, chosen

    def best_at_least(self, version: int, length: int, least: float, opened: bool) -> tuple[float, int] | None:
        """As `best`, but None if the gain is below `least`, which must follow from the length. Refusals are remembered."""
        refused = self._refused[version]
        if (length, opened) in refused:
            return None
        found = self.best(version, length, opened)
        if found[0] >= least:
            return found
        refused.add((length, opened))
        return None

    def give(self, index: int, length: int) -> None:
        """A trajectory that fits goes to a replica."""
        self._set(index, self._version[index], self._running[index] + 1, self._kv[index] + length, False)

    def empty(self, index: int, version: int) -> None:
        """A replica has pulled a version and holds nothing."""
        self._set(index, version, 0, 0, False)

    def mark(self) -> int:
        """A point to come back to."""
        return len(self._log)

    def rollback(self, mark: int) -> None:
        """Undo everything since a mark."""
        while len(self._log) > mark:
            self._set(*self._log.pop())
            self._log.pop()

    def _set(self, index: int, version: int, running: int, kv: int, waits: bool) -> None:
        before, had, held, waited = self._version[index], self._running[index], self._kv[index], self._waits[index]
        self._log.append((index, before, had, held, waited))
        view = self.views[index]
        if not waited and had < view.capacity:
            group, key = self._groups[before], (had, self._budgets[index], view.open)
            members = group[key][0]
            if len(members) > 1:
                del members[bisect_left(members, (held, index))]
            else:
                del group[key]
        self._refused[before].clear()
        if version != before:
            self._sizes[before] -= 1
            self._sizes[version] = self._sizes.get(version, 0) + 1
            self._groups.setdefault(version, {})
            self._refused[version] = set()
            self._version[index] = version
        self._running[index], self._kv[index], self._waits[index] = running, kv, waits
        if not waits and running < view.capacity:
            group, key = self._groups[version], (running, self._budgets[index], view.open)
            found = group.get(key)
            if found is None:
                group[key] = self._class(key, [(kv, index)])
            else:
                insort(found[0], (kv, index))

    def _class(self, key: _Key, members: list[_Member]) -> _Class:
        running, budget, is_open = key
        now, then = max(self._k2, self._k3 * running), max(self._k2, self._k3 * (running + 1))
        return members, running, budget, now, then, is_open, running + math.sqrt(running * running + running)
