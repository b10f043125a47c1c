"""Routing by predicted length (StreamRL, section 5.3) over a pool that is filled again all the time. Plugin ``skew-aware``.

    what waits and runs, by length ──► the tail and the others ──► replicas of each ──► longest first to who has least to do
                                              ▲
        what replicas hold already ───────────┘ they keep their part unless another split is faster by `hysteresis`

The paper dispatches a whole batch at once to idle replicas. Here the split is planned again whenever something can be placed,
over all that waits and runs, and the policy remembers nothing: the replicas that hold the tail are those of the tail. Where
the paper leaves a choice:

* a whole batch goes longest first; of a pool that never empties the shortest would wait for ever. So prompts are taken a batch
  at a time, in order of arrival, and longest first within it;
* what no length is predicted for is none of the longest, and as long as the median of the others;
* P50 and P90 are of the lengths that responses had of late, as in the paper; until a batch was trained on, of the predictions;
* a step takes as long for both classes, that of a batch of the median length: the paper profiles it by the size of the batch
  alone. At lengths of their own (`own_steps`) the tail gets replicas that the long responses among the others lack;
* lengths that equal the limit between the classes are none of the longest. So predictions that are all alike give no tail;
* a replica has to do what is left on average of what it holds, E[L - t | L > t], where quantiles are predicted; the class of a
  trajectory is that of its whole length;
* replicas with unlike room for trajectories or tokens, or of pools with unlike costs, are each planned with their own, and time
  is spread evenly instead of tokens; the tail runs where it stands already, then where one decodes fastest;
* a replica without work takes the longest that waits, of either class. A class whose replicas are full waits;
* predictions that are right less often than `split_recall` order what waits and do not split it: a long response among the
  others costs little, and replicas that wait for a tail that is none of the longest cost much.
"""

from __future__ import annotations

import dataclasses
import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

from tailrace.contracts import (
    CHOSEN,
    Cycle,
    Facts,
    MeasuredLengths,
    MeasuredRecall,
    Placement,
    Reason,
    ReplicaView,
    RoutingPolicy,
    TentativeAdmission,
    TrajectoryView,
    Tried,
    Unstarted,
    Why,
    expected_one_of,
)
from tailrace.repack.batch_time import Decoding
from tailrace.repack.errors import LoadError
from tailrace.repack.routing import Entry, LeastLoaded, LoadHeap, by_group, queues, serving
from tailrace.repack.tail_splits import (
    OBJECTIVES,
    Kinds,
    Objective,
    TailShare,
    UnequalSplit,
    best_split,
    combined,
    split_times,
    splits,
    tail_count,
)
from tailrace.repack.throughput import Costed, ThroughputModel

PoolCost = tuple[str, float, float, float, float]
"""A pool's name, and k1 to k4 of its replicas."""


def models_of(costs: Sequence[PoolCost]) -> dict[str, ThroughputModel]:
    """The cost model of each pool.

    Raises:
        LoadError: a pool occurs twice, or a coefficient is out of its range.
    """
    models: dict[str, ThroughputModel] = {}
    for name, *coefficients in costs:
        if name in models:
            raise LoadError(f"found pool {name!r} twice in pool_costs, expected each once")
        models[name] = ThroughputModel(*coefficients)
        if not models[name].step_latency_s(0, 0) > 0:
            raise LoadError(
                f"found k2 = k4 = 0 of pool {name!r} in pool_costs, expected a sum above 0: a step takes time"
            )
    return models


def profiles(
    replicas: Sequence[ReplicaView], length: float, model: ThroughputModel, by_pool: Mapping[str, ThroughputModel]
) -> list[Decoding]:
    """The profile of each replica, with trajectories of a length in tokens; equal replicas share one.

    Args:
        model: the cost model of replicas whose pool has none of its own.
        by_pool: those that pools have.
    """
    say = all(view.kv_capacity_tokens for view in replicas)  # else the room for tokens is not planned with

    def decoding(slots: int, room: int, own: ThroughputModel) -> Decoding:
        def step_latency_s(batch: int) -> float:
            return own.step_latency_s(batch * length, batch)

        def max_batch(tokens: float) -> int:
            return max(1, min(slots, int(room // tokens))) if room else slots

        return Decoding(step_latency_s, max_batch)

    kinds = [
        (max(1, view.capacity), view.kv_capacity_tokens if say else 0, by_pool.get(view.pool, model))
        for view in replicas
    ]
    made = {kind: decoding(*kind) for kind in dict.fromkeys(kinds)}
    return [made[kind] for kind in kinds]


def paces(kinds: Sequence[Decoding], length: float) -> list[float]:
    """Seconds that a token of a full batch costs each replica; 1 if all are equal, so that tokens are what is compared."""
    if len(set(kinds)) == 1:
        return [1.0] * len(kinds)
    return [kind.step_s(batch) / batch for kind in kinds for batch in (kind.largest(length),)]


_UNPREDICTED = Reason(Why.UNPREDICTED)


@dataclass(frozen=True, slots=True)
class SkewAware(Costed, RoutingPolicy):
    """The longest trajectories run apart from the others, in small batches. Plugin ``skew-aware``.

    Without any prediction it places what `LeastLoaded` places, and so it does while predictions find the longest no better than
    chance: a split by those would only leave replicas idle.

    Args:
        k1, k2, k3, k4: see `Costed`.
        alpha: share of the trajectories that wait and run that are the tail, 0 to 1; their number is rounded up.
        hysteresis: share by which another split must be faster than the one that stands, at least 0.
        split_recall: measured recall of the longest 20 % from which the tail runs apart, 0 to 1. Below it all replicas take
            the longest first. A recall that is not measured yet counts as one that is high enough.
        objective: what is least of the times of both classes: ``"max"``, since they run at once, or ``"sum"``, as in the paper.
        own_steps: cost a step of each class at the length of its own, P90 or P50, and not both at the median.
        pool_costs: name and k1 to k4 of each pool of replicas that has coefficients of its own.

    Raises:
        LoadError: a value is out of its range.
    """

    alpha: Annotated[float, Tried((0.05, 0.2, 0.5))] = 0.2
    hysteresis: Annotated[float, Tried((0.0, 0.1, 1.0))] = 0.1
    split_recall: float = 0.65
    objective: Annotated[Objective, Tried(OBJECTIVES)] = "max"
    own_steps: bool = False
    pool_costs: tuple[PoolCost, ...] = ()

    def __post_init__(self) -> None:
        Costed.__post_init__(self)
        if not 0 <= self.alpha <= 1:
            raise LoadError(f"found alpha={self.alpha!r}, expected a share of 0 to 1")
        if not 0 <= self.split_recall <= 1:
            raise LoadError(f"found split_recall={self.split_recall!r}, expected a share of 0 to 1")
        if self.objective not in OBJECTIVES:
            raise LoadError(f"found objective={self.objective!r}, {expected_one_of(str(self.objective), OBJECTIVES)}")
        if not (self.hysteresis >= 0 and math.isfinite(self.hysteresis)):
            raise LoadError(f"found hysteresis={self.hysteresis!r}, expected a finite share of at least 0")
        models_of(self.pool_costs)

    @classmethod
    def options_from(cls, facts: Facts) -> dict[str, object]:
        """The coefficients that the run knows, and those of each pool that has its own."""
        pools = [(name, *dataclasses.astuple(costs)) for name, costs in facts.pool_costs]
        return {**Costed.options_from(facts), **({"pool_costs": pools} if pools else {})}

    def route(self, cycle: Cycle) -> Sequence[Placement]:
        """Everything that a replica may take now, in the order in which it should start."""
        replicas = serving(cycle)
        resumed, fresh = _waiting(cycle)
        if not replicas or not (resumed or _have_room(replicas, fresh)):
            return ()
        running = [list(replica.trajectories.values()) for replica in replicas]
        lengths = [view.predicted for view in resumed]
        for group in fresh:
            lengths += [group.predicted] * len(group.members)
        rolling = [*lengths, *(view.predicted for held in running for view in held)]
        known = sorted((length for length in rolling if length is not None), reverse=True)
        unknown = _UNPREDICTED if not known else _no_better_than_chance(cycle.recall)
        if unknown is not None:
            return [Placement(each.trajectory, each.replica, unknown) for each in LeastLoaded().route(cycle)]
        apart = cycle.recall is None or cycle.recall.recall >= self.split_recall
        wanted = tail_count(len(rolling), self.alpha) if apart else 0
        part = self._part(replicas, running, known, len(rolling), wanted, cycle.lengths)
        return _place(cycle, part, resumed, sorted(fresh, key=part.turn))

    def _part(
        self,
        replicas: Sequence[ReplicaView],
        running: Sequence[Sequence[TrajectoryView]],
        known: Sequence[float],
        count: int,
        wanted: int,
        lengths: MeasuredLengths | None,
    ) -> _Part:
        """Which lengths are the tail, and which replicas run it.

        Args:
            running: what each replica holds.
            known: all predictions of what waits and runs, longest first.
            count: trajectories that wait and run, predicted or not.
            wanted: how many of them are to be the tail.
            lengths: of what has finished of late.
        """
        median = known[len(known) // 2]
        limit = known[wanted] if wanted < len(known) else 0.0
        tail = bisect_left(known, -limit, key=lambda length: -length)
        work = [[_left(view, median) for view in held] for held in running]
        pools = models_of(self.pool_costs)
        kinds = profiles(replicas, median, self.model, pools)
        cost = paces(kinds, median)
        left = [pace * sum(tokens) for pace, tokens in zip(cost, work, strict=True)]
        if not tail or len(replicas) == 1:
            return _Part(math.inf, median, (), range(len(replicas)), replicas, left, cost)
        p50, p90 = (median, known[len(known) // 10]) if lengths is None else (lengths.p50, lengths.p90)
        of_tail, of_regular = TailShare(tail, p90, known[0]), TailShare(count - tail, p50)
        tails, regulars = (
            profiles(replicas, length, self.model, pools) if self.own_steps else kinds for length in (p90, p50)
        )
        shares = [_tail_share(held, limit, tokens) for held, tokens in zip(running, work, strict=True)]
        standing = sum([share > 0.5 for share in shares])
        if standing not in splits(of_tail, of_regular, len(replicas)):
            standing = 0  # none stands
        if len(set(kinds)) == 1:
            pair = tails[0], regulars[0]
            for_tail = _largest(shares, self._among_equals(pair, of_tail, of_regular, len(replicas), standing))
        else:
            # Who holds most of the tail comes first, then who decodes one fastest, then who has least room.
            first = [(-shares[at], kind.step_s(1), kind.largest(median), at) for at, kind in enumerate(kinds)]
            order = [at for *_, at in sorted(first)]
            both = [tails[index] for index in order], [regulars[index] for index in order]
            for_tail = set(order[: self._among_unequal(both, of_tail, of_regular, standing)])
        others = sorted(set(range(len(replicas))) - for_tail)
        return _Part(limit, median, sorted(for_tail), others, replicas, left, cost)

    def _among_equals(self, kinds: Kinds, tail: TailShare, regular: TailShare, replicas: int, standing: int) -> int:
        """How many replicas run the tail: as many as do (0: none stands), unless another split is clearly faster."""
        best_s, split, _ = best_split(kinds, tail, regular, replicas, self.objective)
        if standing:
            times = split_times(kinds, tail, regular, replicas, standing)
            if combined(times, self.objective) <= best_s * (1 + self.hysteresis):
                return standing
        return split

    def _among_unequal(
        self, kinds: tuple[Sequence[Decoding], Sequence[Decoding]], tail: TailShare, regular: TailShare, standing: int
    ) -> int:
        """The same for unequal replicas, of which the first ones run the tail."""
        of_tail, of_regular = kinds  # what they hold is part of the classes
        plan = UnequalSplit(of_tail, [0.0] * len(of_tail), tail, regular, of_regular)
        best = plan.best(self.objective)
        slowest = plan.seconds(best, self.objective) * (1 + self.hysteresis)
        if standing and plan.seconds(standing, self.objective) <= slowest:
            return standing
        return best


@dataclass(frozen=True, slots=True)
class _Fresh:
    """A group that has not started, and what is predicted for each of its trajectories: `predicted` and `left` of its view."""

    group: int
    members: Sequence[str]
    predicted: float | None
    left: float | None
    batch: int


class _Part:
    """The replicas of the tail and those of the others, and what each has to do.

    Args:
        limit: tokens above which a trajectory is of the tail; infinite if there is none.
        median: tokens that stand for what is not predicted.
        tail: indices of the tail's replicas, ascending.
        regular: indices of the others, ascending.
        work: tokens that are left of what each replica holds, at its pace.
        paces: what a token costs each replica, in any one unit.
    """

    def __init__(
        self,
        limit: float,
        median: float,
        tail: Sequence[int],
        regular: Sequence[int],
        replicas: Sequence[ReplicaView],
        work: Sequence[float],
        paces: Sequence[float],
    ) -> None:
        self.limit, self.median = limit, median
        self.tail, self.regular = (
            _Work([replicas[at] for at in chosen], [work[at] for at in chosen], [paces[at] for at in chosen])
            for chosen in (tail, regular)
        )

    def turn(self, group: _Fresh) -> tuple[int, float, int]:
        """When a group's turn is: batch by batch, longest first."""
        return group.batch, -self.length(group.predicted), group.group

    def length(self, predicted: float | None) -> float:
        """Tokens that a trajectory is planned with."""
        return self.median if predicted is None else predicted

    def of(self, predicted: float | None) -> tuple[_Work, _Work]:
        """The replicas of a trajectory's class, and the others."""
        longest = predicted is not None and predicted > self.limit
        return (self.tail, self.regular) if longest else (self.regular, self.tail)

    def reason(self, predicted: float | None) -> Reason:
        """Why a trajectory goes to the replicas of its class."""
        if predicted is None:
            return _UNPREDICTED
        if self.limit == math.inf:
            return Reason(Why.REGULAR, "", {"predicted": predicted})
        why = Why.LONG_TAIL if predicted > self.limit else Why.REGULAR
        return Reason(why, "", {"predicted": predicted, "limit": self.limit})


class _Work(LoadHeap):
    """The replicas of a class, by how long what is left of what they hold will take them."""

    def __init__(self, replicas: Sequence[ReplicaView], work: Sequence[float], paces: Sequence[float]) -> None:
        self.work, self.left, self.paces = list(work), 0.0, paces
        super().__init__(replicas)
        self.versions = {view.version for view in replicas if view.version is not None}

    def take_one(self, versions: Sequence[int], left: float) -> str | None:
        """The replica that has least to do and serves one of the versions, for a trajectory; None if none does."""
        here = [version for version in versions if version in self.versions]
        self.left = left
        return self.anywhere(here) if here else None

    def take_group(self, versions: Sequence[int], count: int, left: float) -> tuple[str, int] | None:
        """The open replica with room that has least to do, and its version, for a group; None if there is none."""
        self.left = left
        return self.with_room([version for version in versions if version in self.versions], count)

    def take_dry(self, versions: Sequence[int], count: int, left: float) -> tuple[str, int] | None:
        """An open replica without any work, and its version."""
        for index, view in enumerate(self.replicas):
            version = view.version
            if view.open and not self.held[index] and version is not None and version in versions:
                self.left = left
                self.give(index, count)
                return view.replica, version
        return None

    def entry(self, index: int) -> Entry:
        return self.work[index], self.replicas[index].kv, index, self.held[index]

    def give(self, index: int, count: int) -> None:
        self.work[index] += count * self.left * self.paces[index]
        super().give(index, count)


def _no_better_than_chance(recall: MeasuredRecall | None) -> Reason | None:
    """Why predictions are not used, if they are not."""
    if recall is None or not recall.by_chance:
        return None
    return Reason(Why.CHANCE, "", {"recall": recall.recall, "chance": recall.chance})


def _waiting(cycle: Cycle) -> tuple[list[TrajectoryView], list[_Fresh]]:
    """Trajectories that resume, and groups that have not started; both in order of arrival."""
    resumed: list[TrajectoryView] = []
    fresh: list[_Fresh] = []
    for version, queue in queues(cycle):
        if version is not None:
            resumed += queue.values()
            continue
        predicted, left = _predictions(queue)
        for group, members in by_group(queue)[0].items():
            batch = group // max(1, cycle.progress.batch_groups)
            fresh.append(_Fresh(group, members, predicted.get(group), left.get(group), batch))
    return resumed, fresh


def _predictions(queue: Mapping[str, TrajectoryView]) -> tuple[Mapping[int, float], Mapping[int, float]]:
    """What views of groups have as `predicted` and as `left`."""
    if isinstance(queue, Unstarted):
        return queue.predicted, queue.left
    predicted = {view.group: view.predicted for view in queue.values() if view.predicted is not None}
    return predicted, {view.group: view.left for view in queue.values() if view.left is not None}


def _have_room(replicas: Sequence[ReplicaView], fresh: Sequence[_Fresh]) -> bool:
    """Whether some group fits some open replica: else there is nothing to plan."""
    smallest = min([len(group.members) for group in fresh], default=0)
    return bool(fresh) and any(
        view.open and (not view.held or view.held + smallest <= view.capacity) for view in replicas
    )


def _left(view: TrajectoryView | _Fresh, median: float) -> float:
    """Tokens that a trajectory, or each of a group, still costs its replica; the median of the others if nothing is known."""
    if view.left is not None:
        return view.left
    return median if view.predicted is None else view.predicted


def _tail_share(held: Sequence[TrajectoryView], limit: float, left: Sequence[float]) -> float:
    """The tail's share of the tokens that a replica has to generate yet; a half if it holds nothing."""
    of_tail = [tokens for view, tokens in zip(held, left, strict=True) if (view.predicted or 0.0) > limit]
    return sum(of_tail) / sum(left) if left else 0.5


def _largest(shares: Sequence[float], count: int) -> set[int]:
    """Indices of the `count` largest. Of equal ones, some at equal distances: part of a fleet has part of each class."""
    least = sorted(shares, reverse=True)[count - 1]
    larger = [index for index, share in enumerate(shares) if share > least]
    equal = [index for index, share in enumerate(shares) if share == least]
    need = count - len(larger)
    return {*larger, *(equal[number * len(equal) // need] for number in range(need))}


def _place(cycle: Cycle, part: _Part, resumed: Sequence[TrajectoryView], fresh: Sequence[_Fresh]) -> list[Placement]:
    versions = sorted({version for work in (part.tail, part.regular) for version in work.versions})
    return [*_place_resumed(part, versions, resumed), *_place_fresh(part, versions, fresh, cycle.admits.fork())]


def _place_resumed(part: _Part, versions: Sequence[int], resumed: Sequence[TrajectoryView]) -> Iterable[Placement]:
    """Place what has a version, oldest first: on the replicas of its class if one may go on with it, else on another."""
    for view in sorted(resumed, key=lambda view: (view.version, -part.length(view.predicted))):
        assert view.version is not None
        allowed = [view.version] if view.exact else versions[bisect_left(versions, view.version) :]
        own, other = part.of(view.predicted)
        for work, reason in ((own, part.reason(view.predicted)), (other, CHOSEN)):
            replica = work.take_one(allowed, _left(view, part.median))
            if replica is not None:
                yield Placement(view.trajectory, replica, reason)
                break


def _place_fresh(
    part: _Part, versions: Sequence[int], fresh: Sequence[_Fresh], admits: TentativeAdmission
) -> list[Placement]:
    """Place whole groups in their turn on the replicas of their class, then the first that are left on those without work."""
    placed: list[Placement] = []
    left: list[_Fresh] = []
    allowed = [version for version in versions if admits.allows(version)]

    def place(group: _Fresh, found: tuple[str, int], reason: Reason) -> list[int]:
        replica, version = found
        admits.take(group.group, version)
        placed.extend([Placement(name, replica, reason) for name in group.members])
        return [version for version in allowed if admits.allows(version)]

    for group in fresh:
        found = part.of(group.predicted)[0].take_group(allowed, len(group.members), _left(group, part.median))
        if found is None:
            left.append(group)
        else:
            allowed = place(group, found, part.reason(group.predicted))
    for group in left:
        for work in (part.tail, part.regular):
            found = work.take_dry(allowed, len(group.members), _left(group, part.median))
            if found is not None:
                numbers = {} if group.predicted is None else {"predicted": group.predicted}
                allowed = place(group, found, Reason(Why.DRY, "", numbers))
                break
        else:
            break
    return placed
