"""The throughput that a replica gains from one more trajectory, and the replica that gains most, exactly, without asking all.

StaleFlow, section 5.3, equations 3 and 4. The KV cache is counted in tokens: the paper's k5, the size of a token, is 1.

Replicas that serve one version and run the same number n of trajectories form a class, in ascending order of their KV cache.
With D the latency of a step now and a the latency that the trajectory adds, the gain of equation 3 is

    h(n, a, D) = (n + 1) / (D + a) - n / D = (D - n a) / (D (D + a)).

* It rises with D up to D = a (n + sqrt(n^2 + n)) and falls from there. So the best replica of a class is one of the two on
  either side of that point, which a bisection finds.
* It falls with n and with a, and a does not fall with n. So h at the best possible D bounds the gains of a class and of all
  classes with more trajectories. The search goes upwards in n and stops when that bound is below the best gain found.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass, field

from tailrace.contracts import ReplicaView
from tailrace.repack.throughput import ThroughputModel


def marginal_gain(
    model: ThroughputModel,
    *,
    kv_tokens: float,
    running: int,
    waiting: int,
    length: int,
    kv_budget_tokens: float = 0,
    capacity: int | None = None,
) -> float:
    """Tokens per second that a replica gains from a trajectory (equation 3); 0 if the trajectory would have to wait.

    A long trajectory may slow the others down by more than it adds; then the gain is negative.

    Args:
        model: the cost model, with k1 in seconds for each token in the KV cache.
        kv_tokens: tokens in the replica's KV cache.
        running: trajectories in its decode batch.
        waiting: trajectories queued in its engine; a new one starts at once only if there are none.
        length: tokens of the trajectory so far.
        kv_budget_tokens: tokens that its KV cache can hold (M); 0 for no limit.
        capacity: trajectories that its decode batch can hold; None for no limit.
    """
    fits = (
        waiting == 0
        and (capacity is None or running < capacity)
        and (not kv_budget_tokens or kv_tokens + length <= kv_budget_tokens)
    )
    if not fits:
        return 0.0
    return model.throughput(kv_tokens + length, running + 1) - model.throughput(kv_tokens, running)


def ideal_gain(model: ThroughputModel, length: int) -> float:
    """Tokens per second of a trajectory alone on an idle replica, the largest possible gain (equation 4).

    Algorithm 3 prints k1 * k2 * length where equation 4 has k1 * k5 * length. This follows the equation.
    """
    return model.throughput(length, 1)


# (tokens in the KV cache, index of the replica in the order of names)
_Member = tuple[int, int]
# Latency of matrix multiplication with n and with n + 1 trajectories, their difference, the first plus the overhead k4, and
# the best D divided by a.
_Shape = tuple[float, float, float, float, float]
# Place in the order of classes, members, then what all members share: trajectories, KV budget, whether open, and `_Shape`.
_Class = tuple[int, list[_Member], int, float, bool, float, float, float, float, float]
# State of a replica: version, trajectories, tokens in the KV cache, and the most trajectories with which it can take one more.
_State = tuple[int, int, int, int]

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
        classes: the classes by their place in the order, which ascends with the number of trajectories.
        order: the same classes as a list, in order.
        least_kv: a lower bound of the members' KV caches, in tokens.
        refused: searches (length, whether only open replicas count) that found no sufficient gain and will find none until
            something changes.
        size: number of replicas, including those that can take nothing more.
    """

    classes: dict[int, _Class] = field(default_factory=dict)
    order: list[_Class] = field(default_factory=list)
    least_kv: int = 0
    refused: set[tuple[int, bool]] = field(default_factory=set)
    size: int = 0

    def refresh(self) -> None:
        """Make `least_kv` exact again; between refreshes it may be too low."""
        self.least_kv = min((members[0][0] for _, members, *_ in self.order), default=0)


class GainIndex:
    """Replicas by version and load, to be searched for the largest marginal gain.

    `rollback` undoes every change since `mark`.

    Args:
        model: the cost model, with k1 in seconds for each token of KV cache.
        views: replicas that can be planned with, in order of name.
    """

    def __init__(self, model: ThroughputModel, views: Sequence[ReplicaView]) -> None:
        self.views = views
        self._k1, self._k2, self._k3, self._k4 = model.k1, model.k2, model.k3, model.k4
        self._slack = 1e-9 / (max(model.k2, model.k3) + model.k4)
        self._states: list[_State] = [
            (
                -1 if view.version is None else view.version,
                view.running,
                kv_tokens(view),
                0 if view.waiting else view.places,  # nothing may run while something waits
            )
            for view in views
        ]
        kinds: dict[tuple[float, bool], int] = {}
        self._kind = [
            kinds.setdefault((float(view.kv_capacity_tokens or math.inf), view.open), len(kinds)) for view in views
        ]
        self._kinds = list(kinds)
        self._stride = len(kinds)
        self._shapes: dict[int, _Shape] = {}
        self._log: list[tuple[int, _State]] | None = None
        self._changes = 0
        self._groups: dict[int, _Group] = {}
        for index, (version, running, kv, limit) in enumerate(self._states):
            group = self._group(version)
            group.size += 1
            if running < limit:
                place = running * self._stride + self._kind[index]
                (group.classes.get(place) or self._new_class(group, place, running))[1].append((kv, index))
        for group in self._groups.values():
            for _, members, *_ in group.order:
                members.sort()
            group.refresh()

    def versions(self) -> list[int]:
        """Versions that some replica serves, oldest first."""
        return sorted(version for version, group in self._groups.items() if group.size)

    def best(self, version: int, length: int, least: float, opened: bool) -> tuple[float, int] | None:
        """The largest gain among the replicas of a version, and the replica; of equals, the first by name.

        Args:
            version: the version that the replicas serve.
            length: tokens of the trajectory.
            least: least sufficient gain, in tokens per second. It must depend on the length alone, since failures are stored.
            opened: whether only open replicas count.

        Returns:
            The gain in tokens per second and the index of the replica in `views`; None if no gain is sufficient.
        """
        group = self._groups[version]
        if (length, opened) in group.refused:
            return None
        k1, k4, slack = self._k1, self._k4, self._slack
        best, nobody = least, len(self.views)
        chosen, floor, added, least_s = nobody, best - slack, k1 * length, k1 * group.least_kv
        for _, members, running, budget, is_open, now, then, more, fixed, peak in group.order:
            rise = added + more
            top, lowest = rise * peak, least_s + fixed
            if top < lowest:
                top = lowest
            if (top - running * rise) / (top * (top + rise)) < floor:
                break
            kv, index = members[0]
            if (opened and not is_open) or kv + length > budget:
                continue
            if top > lowest or not k1:
                end = len(members)
                if members[-1][0] + length > budget:
                    end = bisect_left(members, (budget - length + 1, -1))
                if not k1:
                    index = min(index for _, index in members[:end])
                elif (turn := (top - fixed) / k1) > kv:
                    # The gain peaks at `turn` tokens, so only the members next to it on either side can be best.
                    place = bisect_left(members, (turn, -1), 0, end)
                    kv, index = members[bisect_left(members, (members[place - 1][0], -1), 0, place)]
                    if place < end:
                        above, other = members[place]
                        gain = (running + 1) / (k1 * (above + length) + then + k4) - running / (k1 * above + now + k4)
                        if gain > best or (gain == best and other < chosen):
                            best, chosen, floor = gain, other, gain - slack
            gain = (running + 1) / (k1 * (kv + length) + then + k4) - running / (k1 * kv + now + k4)
            if gain > best or (gain == best and index < chosen):
                best, chosen, floor = gain, index, gain - slack
        if chosen == nobody:
            group.refused.add((length, opened))
            return None
        return best, chosen

    def bound(self, running: int, kv: int, length: int) -> float:
        """An upper bound of the gain of any replica with at least `running` trajectories and `kv` tokens."""
        _, _, more, fixed, peak = self._shape(running)
        rise = self._k1 * length + more
        top = max(rise * peak, self._k1 * kv + fixed)
        return (top - running * rise) / (top * (top + rise)) + self._slack

    def reachable(self, version: int, length: int, least: float) -> bool:
        """Whether some replica of a version might gain `least`, now or after it was given more work; may be True wrongly."""
        group = self._groups[version]
        return bool(group.order) and self.bound(group.order[0][2], group.least_kv, length) >= least

    def give(self, index: int, length: int) -> None:
        """Add a trajectory, which must fit, to a replica."""
        version, running, kv, limit = self._states[index]
        self._set(index, (version, running + 1, kv + length, limit))

    def empty(self, index: int, version: int) -> None:
        """Set a replica to an empty one that has just pulled a version."""
        self._set(index, (version, 0, 0, self.views[index].places))

    def mark(self) -> None:
        """Remember the state for `rollback`."""
        self._log = []

    def rollback(self) -> None:
        """Undo everything since the mark."""
        log, self._log = self._log or [], None
        for change in reversed(log):
            self._set(*change)

    def _set(self, index: int, state: _State) -> None:
        version, running, kv, limit = state
        before, had, held, could = self._states[index]
        if self._log is not None:
            self._log.append((index, self._states[index]))
        self._states[index] = state
        group, kind, stride = self._groups[before], self._kind[index], self._stride
        group.refused.clear()
        if had < could:
            place = had * stride + kind
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
        if running < limit:
            place = running * stride + kind
            insort((group.classes.get(place) or self._new_class(group, place, running))[1], (kv, index))
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

    def _new_class(self, group: _Group, place: int, running: int) -> _Class:
        """Create the class at a place in the order."""
        made = group.classes[place] = (place, [], running, *self._kinds[place % self._stride], *self._shape(running))
        insort(group.order, made)
        return made

    def _shape(self, running: int) -> _Shape:
        """The values that depend only on the number of trajectories."""
        shape = self._shapes.get(running)
        if shape is None:
            now, then = max(self._k2, self._k3 * running), max(self._k2, self._k3 * (running + 1))
            peak = running + math.sqrt(running * running + running)
            shape = self._shapes[running] = (now, then, then - now, now + self._k4, peak)
        return shape
