"""How equal replicas are split between the tail and the others (StreamRL, Algorithm 2): from numbers and lengths alone."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from tailrace.repack.decoding import Decoding

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
