"""How replicas, equal or not, are split between the tail and the others (StreamRL, Algorithm 2), by lengths alone."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal

from tailrace.repack.batch_time import Decoding, fill

Objective = Literal["max", "sum"]
OBJECTIVES: tuple[Objective, ...] = ("max", "sum")


@dataclass(frozen=True, slots=True)
class TailShare:
    """The tail or the others.

    Args:
        count: trajectories.
        length: tokens that stand for each of them.
        longest: tokens of the longest, whose time bounds that of all; 0 if it does not matter.
    """

    count: int
    length: float
    longest: float = 0.0


def tail_count(trajectories: int, alpha: float) -> int:
    """How many trajectories are the tail: a share of all, rounded up."""
    # The product may be a rounding error above a whole number, which must not become one trajectory more.
    return math.ceil(round(alpha * trajectories, 9))


def splits(tail: TailShare, regular: TailShare, replicas: int) -> range:
    """How many replicas the tail may have: a class with trajectories needs one, a class without needs none."""
    return range(1, replicas + (0 if regular.count else 1)) if tail.count else range(1)


Kinds = tuple[Decoding, Decoding]
"""The profile of a replica with trajectories as long as the tail's, and with those of the others."""


def combined(times: tuple[float, float], objective: Objective) -> float:
    """The value of the objective for the times of both classes."""
    return max(times) if objective == "max" else sum(times)


def split_times(kinds: Kinds, tail: TailShare, regular: TailShare, replicas: int, split: int) -> tuple[float, float]:
    """Seconds for the tail on `split` replicas, and for the others on the rest; 0 for a class without trajectories."""

    def time_s(kind: Decoding, share: TailShare, count: int) -> float:
        return kind.time_s(-(-share.count // count), share.length, share.longest) if share.count else 0.0

    return time_s(kinds[0], tail, split), time_s(kinds[1], regular, replicas - split)


def best_split(
    kinds: Kinds, tail: TailShare, regular: TailShare, replicas: int, objective: Objective = "max"
) -> tuple[float, int, tuple[float, float]]:
    """The least value of the objective, the tail's replicas and both times. Of equally fast splits, the smallest.

    All splits are tried: no more than a figure for each, whatever the number of trajectories.
    """
    return min(
        (combined(times, objective), split, times)
        for split in splits(tail, regular, replicas)
        for times in (split_times(kinds, tail, regular, replicas, split),)
    )


@dataclass(frozen=True, slots=True)
class Filled:
    """A class on its replicas: seconds until all is generated, and how many trajectories each replica takes at most."""

    seconds: float
    counts: Sequence[int]


class UnequalSplit:
    """Splits of replicas of which the first ones run the tail, and the rest the others.

    Args:
        kinds: the profile of each replica, in the order in which they are taken for the tail.
        left_s: seconds for which each is still busy.
        tail, regular: the classes.
        of_regular: the profiles with trajectories as long as the others; None: those of `kinds`.
    """

    def __init__(
        self,
        kinds: Sequence[Decoding],
        left_s: Sequence[float],
        tail: TailShare,
        regular: TailShare,
        of_regular: Sequence[Decoding] | None = None,
    ) -> None:
        self._kinds, self._left_s, self._tail, self._regular = kinds, left_s, tail, regular
        self._of_others = kinds if of_regular is None else of_regular
        self.tail, self.regular = cache(self._of_tail), cache(self._of_regular)

    def seconds(self, split: int, objective: Objective = "max") -> float:
        """The value of the objective if `split` replicas run the tail: for "max", until both classes are generated."""
        return combined((self.tail(split).seconds, self.regular(split).seconds), objective)

    def best(self, objective: Objective = "max") -> int:
        """How many replicas the tail has in the fastest split; of equally fast ones the fewest.

        The more it has, the sooner it ends and the later the others do: the split with the least maximum is where they cross.
        For the least sum all splits are tried.
        """
        tried = splits(self._tail, self._regular, len(self._kinds))
        if objective != "max":
            return min(tried, key=lambda split: (self.seconds(split, objective), split))
        crossing = bisect_left(tried, True, key=lambda split: self.tail(split).seconds <= self.regular(split).seconds)
        seconds, split = min((self.seconds(split), split) for split in tried[max(0, crossing - 1) : crossing + 1])
        # Before the crossing the tail decides, and fewer replicas may do as well.
        return tried[bisect_left(tried, True, hi=tried.index(split), key=lambda few: self.tail(few).seconds <= seconds)]

    def _of_tail(self, split: int) -> Filled:
        return self._filled(self._tail, self._kinds, slice(0, split))

    def _of_regular(self, split: int) -> Filled:
        return self._filled(self._regular, self._of_others, slice(split, None))

    def _filled(self, share: TailShare, profiles: Sequence[Decoding], chosen: slice) -> Filled:
        kinds, left_s = profiles[chosen], self._left_s[chosen]
        if not share.count:
            return Filled(0.0, [0] * len(kinds))
        return Filled(*fill(kinds, left_s, share.count, share.length, share.longest))
