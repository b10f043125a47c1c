"""How unequal or busy replicas are split between the tail and the others. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from tailrace.repack.decoding import Decoding, fill
from tailrace.repack.splits import Objective, TailShare, combined, splits


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
