"""Skewness-aware dispatching (StreamRL, section 5.3, Algorithm 2): which replicas run the long tail, and who runs what.

The longest trajectories get replicas of their own with small batches, so that they decode as fast as they can; all others
share the rest in large batches. Where the paper, taken literally, chooses badly:

* it minimises the sum of the times of both classes, although they run at once. Here it is the larger; the sum is an option;
* a class that has trajectories gets at least one replica, and a share of the batch is rounded up;
* the ninetieth percentile may be far below the longest prediction. The tail takes at least as long as that one decodes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from tailrace.contracts import expected_one_of
from tailrace.repack.batch_time import Decoding, MaxBatch, StepLatency
from tailrace.repack.errors import LoadError
from tailrace.repack.lpt import check_count, checked_lengths, longest_first, lpt, spread
from tailrace.repack.tail_splits import OBJECTIVES, Objective, TailShare, UnequalSplit, best_split, tail_count

_Profile = TypeVar("_Profile", bound=Callable[..., float])


@dataclass(frozen=True, slots=True)
class Dispatch:
    """Which replicas run the tail, and the queue of each replica.

    Args:
        tail_replicas: replicas that run only the longest trajectories.
        regular_replicas: replicas that run the others.
        latency_s: the objective's value. For ``"max"``, seconds until all are generated.
        queues: of each replica, positions in the predictions, longest first. The tail's replicas come first.
        replicas: whose queue each is: the replica's number. In order, unless replicas are unequal.
        tail_s: seconds until the tail is generated; 0 if no replica runs it apart.
        regular_s: seconds until all others are generated; 0 if there are none.
    """

    tail_replicas: int
    regular_replicas: int
    latency_s: float
    queues: tuple[tuple[int, ...], ...]
    replicas: tuple[int, ...]
    tail_s: float
    regular_s: float


def plan_dispatch(
    predicted: Sequence[float],
    replicas: int,
    *,
    step_latency_s: StepLatency | Sequence[StepLatency],
    max_batch: MaxBatch | Sequence[MaxBatch],
    p50: float,
    p90: float,
    alpha: float = 0.2,
    objective: Objective = "max",
    left_s: Sequence[float] | None = None,
) -> Dispatch:
    """Split the replicas between the longest trajectories and the others, and spread each class (StreamRL, Algorithm 2).

    N replicas of a class take M = ceil(count / N) trajectories each, in batches of BS = min(M, max_batch(L)), and need
    ``step_latency_s(BS) * L * ceil(M / BS)`` seconds, with L = `p90` for the tail and `p50` for the others; the tail at least
    ``step_latency_s(BS) * max(predicted)``. Of all splits the fastest is taken, among equals the one with fewest replicas for
    the tail. Within a class, replicas get as equal numbers of predicted tokens as the longest first allow. One replica runs
    everything, longest first, for the makespan of `lpt` in batches that `p90` allows.

    Beyond the paper, replicas may differ, and may still be busy with the last batch. Then each class is generated in the
    least time in which its replicas, filled unevenly, can; the tail goes to those that would first be done with one
    trajectory of `p90` tokens; and what is spread evenly is time instead of tokens.

    Args:
        predicted: tokens predicted for each trajectory, at least 1.
        replicas: number of replicas, at least 1.
        step_latency_s: seconds of a decoding step by batch size; one profile for all replicas, or one for each. Where
            replicas differ or are busy, every size from 1 to the largest batch is asked for.
        max_batch: trajectories of a length, in tokens, whose KV cache a replica holds; for all replicas, or one for each.
        p50: median of recent output lengths, in tokens.
        p90: their ninetieth percentile.
        alpha: share of the trajectories that are the tail, 0 to 1; their number is rounded up.
        objective: ``"max"``, of the times of both classes; ``"sum"`` as the paper has it, for equal and free replicas only.
        left_s: seconds for which each replica is still busy with earlier trajectories; None: all are free.

    Raises:
        LoadError: there are no predictions, or a value is out of its range.
        NothingFitsError: not even one trajectory of `p50` or `p90` tokens fits a replica.
        UnmeasuredError: a profile does not know a batch size.
    """
    lengths = checked_lengths(predicted, "predicted")
    check_count("replicas", replicas)
    _check_lengths(p50=p50, p90=p90)
    if not 0 <= alpha <= 1:
        raise LoadError(f"found alpha={alpha!r}, expected a share of 0 to 1")
    if objective not in OBJECTIVES:
        raise LoadError(f"found objective={objective!r}, {expected_one_of(str(objective), OBJECTIVES)}")
    kinds = _kinds(step_latency_s, max_batch, replicas)
    left = _left(left_s, replicas)
    order = longest_first(lengths)
    tail = tail_count(len(order), alpha)
    if replicas == 1:
        batch = min(len(order), kinds[0].largest(p90 if tail else p50))
        time_s = left[0] + kinds[0].step_s(batch) * lpt(lengths, batch).makespan
        return Dispatch(0, 1, time_s, (tuple(order),), (0,), 0.0, time_s)
    classes = (_Class(order[:tail], p90, lengths[order[0]]), _Class(order[tail:], p50, 0.0))
    if len(set(kinds)) == 1 and not any(left):
        return _among_equals(classes, lengths, replicas, kinds[0], objective)
    if objective != "max":
        raise LoadError(f"found objective={objective!r} for unequal or busy replicas, expected 'max'")
    return _among_unequal(classes, lengths, kinds, left)


@dataclass(frozen=True, slots=True)
class _Class:
    """The tail or the others: its positions, the length that stands for all of them, and the one that bounds their time."""

    positions: Sequence[int]
    length: float
    longest: float

    @property
    def share(self) -> TailShare:
        """The class by its number."""
        return TailShare(len(self.positions), self.length, self.longest)


def _among_equals(
    classes: tuple[_Class, _Class], lengths: Sequence[float], replicas: int, kind: Decoding, objective: Objective
) -> Dispatch:
    tail, regular = classes
    latency_s, split, times = best_split((kind, kind), tail.share, regular.share, replicas, objective)
    queues = [
        queue
        for members, count in ((tail, split), (regular, replicas - split))
        for queue in spread(members.positions, lengths, [0] * count)
    ]
    return _dispatch(split, latency_s, times, queues, range(replicas))


def _among_unequal(
    classes: tuple[_Class, _Class], lengths: Sequence[float], kinds: Sequence[Decoding], left_s: Sequence[float]
) -> Dispatch:
    tail, regular = classes
    numbers = sorted(
        range(len(kinds)), key=lambda number: (left_s[number] + kinds[number].step_s(1) * tail.length, number)
    )
    ordered, busy = [kinds[number] for number in numbers], [left_s[number] for number in numbers]
    plan = UnequalSplit(ordered, busy, tail.share, regular.share)
    split = plan.best()
    queues: list[list[int]] = []
    for members, chosen, filled in (
        (tail, slice(0, split), plan.tail(split)),
        (regular, slice(split, None), plan.regular(split)),
    ):
        queues += _spread_in_time(members, lengths, ordered[chosen], filled.counts, busy[chosen])
    times = (plan.tail(split).seconds, plan.regular(split).seconds)
    return _dispatch(split, max(times), times, queues, numbers)


def _spread_in_time(
    members: _Class, lengths: Sequence[float], kinds: Sequence[Decoding], counts: Sequence[int], left_s: Sequence[float]
) -> list[list[int]]:
    """Longest first to whoever would be idle first, each at the rate of its batch. Who is busy too long gets none."""
    used = [index for index, count in enumerate(counts) if count]
    batches = [min(counts[index], kinds[index].largest(members.length)) for index in used]
    pace = [kinds[index].step_s(batch) / batch for index, batch in zip(used, batches, strict=True)]
    queues: list[list[int]] = [[] for _ in kinds]
    given = spread(members.positions, lengths, [left_s[index] for index in used], pace)
    for index, queue in zip(used, given, strict=True):
        queues[index] = queue
    return queues


def _dispatch(
    split: int, latency_s: float, times: tuple[float, float], queues: Sequence[Sequence[int]], numbers: Sequence[int]
) -> Dispatch:
    return Dispatch(
        split,
        len(queues) - split,
        latency_s,
        tuple(tuple(queue) for queue in queues),
        tuple(numbers),
        times[0],
        times[1],
    )


def _kinds(
    step_latency_s: StepLatency | Sequence[StepLatency], max_batch: MaxBatch | Sequence[MaxBatch], replicas: int
) -> list[Decoding]:
    """The profile of each replica; replicas with the same functions share one."""
    pairs = zip(
        _of_each("step_latency_s", step_latency_s, replicas), _of_each("max_batch", max_batch, replicas), strict=True
    )
    made: dict[tuple[StepLatency, MaxBatch], Decoding] = {}
    return [made.setdefault(pair, Decoding(*pair)) for pair in pairs]


def _of_each(name: str, given: _Profile | Sequence[_Profile], replicas: int) -> Sequence[_Profile]:
    if callable(given):
        return [given] * replicas
    if len(given) != replicas:
        raise LoadError(f"found {name} for {len(given)} replicas, expected one function or one for each of {replicas}")
    return given


def _left(left_s: Sequence[float] | None, replicas: int) -> Sequence[float]:
    if left_s is None:
        return [0.0] * replicas
    if len(left_s) != replicas:
        raise LoadError(f"found left_s of {len(left_s)} replicas, expected one for each of {replicas}")
    for number, seconds in enumerate(left_s):
        if not (seconds >= 0 and math.isfinite(seconds)):
            raise LoadError(f"found left_s[{number}]={seconds!r}, expected a finite number of seconds of at least 0")
    return left_s


def _check_lengths(**lengths: float) -> None:
    for name, value in lengths.items():
        if not (value >= 1 and math.isfinite(value)):
            raise LoadError(f"found {name}={value!r}, expected a finite number of tokens of at least 1")
