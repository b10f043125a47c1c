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

from tailrace.contracts import ReplicaView
from tailrace.repack.throughput import ThroughputModel

# (tokens in the KV cache, place in the order of names)
_Member = tuple[int, int]
# What its members have in common: trajectories, KV budget, whether they are open.
_Key = tuple[int, float, bool]
# The same, members, latency of matrix multiplication now and with one more, best D over a.
_Class = tuple[int, float, bool, list[_Member], float, float, float]

_REFRESH = 256


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
        self._slack = 1e-9 / (max(model.k2, model.k3) + model.k4)
        self._groups: dict[int, list[_Class]] = {}
        self._least_kv: dict[int, int] = {}
        self._changes = 0
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
            self._groups[version] = sorted(self._class(key, sorted(found)) for key, found in group.items())
            self._refused[version] = set()
            self._refresh(version)

    def versions(self) -> list[int]:
        """Versions that some replica serves, oldest first."""
        return sorted(version for version, size in self._sizes.items() if size)

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
        floor, added, least_kv = least - self._slack, k1 * length, self._least_kv[version]
        for running, budget, is_open, members, now, then, peak in self._groups[version]:
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
        refused = self._refused[version]
        if (length, opened) in refused:
            return None
        found = self.best(version, length, least, opened)
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
        view, budget = self.views[index], self._budgets[index]
        if not waited and had < view.capacity:
            group = self._groups[before]
            place = bisect_left(group, (had, budget, view.open))
            members = group[place][3]
            if len(members) > 1:
                del members[bisect_left(members, (held, index))]
            else:
                del group[place]
        self._refused[before].clear()
        if version != before:
            self._sizes[before] -= 1
            self._sizes[version] = self._sizes.get(version, 0) + 1
            if version not in self._groups:
                self._groups[version], self._refused[version], self._least_kv[version] = [], set(), kv
            self._refused[version].clear()
            self._version[index] = version
        self._running[index], self._kv[index], self._waits[index] = running, kv, waits
        if not waits and running < view.capacity:
            group, key = self._groups[version], (running, budget, view.open)
            place = bisect_left(group, key)
            if place < len(group) and group[place][:3] == key:
                insort(group[place][3], (kv, index))
            else:
                group.insert(place, self._class(key, [(kv, index)]))
        if kv < self._least_kv[version]:
            self._least_kv[version] = kv
        self._changes += 1
        if self._changes % _REFRESH == 0:
            self._refresh(version)

    def _refresh(self, version: int) -> None:
        """Find the least KV cache again; between refreshes it is only known to be no greater."""
        self._least_kv[version] = min((members[0][0] for _, _, _, members, *_ in self._groups[version]), default=0)

    def _class(self, key: _Key, members: list[_Member]) -> _Class:
        running = key[0]
        now, then = max(self._k2, self._k3 * running), max(self._k2, self._k3 * (running + 1))
        return *key, members, now, then, running + math.sqrt(running * running + running)
