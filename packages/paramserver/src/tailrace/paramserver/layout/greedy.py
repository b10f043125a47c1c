"""Who sends what: the load-balancing rule of StaleFlow, Appendix A.2, and the plain rule that it is compared with.

Ranks are numbers here, in order of their names.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from typing import NamedTuple


class Demand(NamedTuple):
    """A slice to assign: its size, the ranks that hold it and the ranks that need it, both ascending."""

    nbytes: int
    holders: tuple[int, ...]
    receivers: tuple[int, ...]


class SenderAssignment(NamedTuple):
    """The sender of every (demand, receiver), in the order of the demands, and each rank's accumulated seconds."""

    senders: array[int]
    load_s: list[float]


Cost = Callable[[int, int, int], float]  # (sender, receiver, bytes) -> seconds


def by_scarcity(demands: Sequence[Demand]) -> list[int]:
    """The positions of the demands in the order in which they are assigned.

    The paper does not name one. Slices with the fewest holders come first, because they leave no choice and those with
    a choice can go around them; then the largest, because the small ones even out what they leave. Ties keep their order.
    """
    return sorted(range(len(demands)), key=lambda index: (len(demands[index].holders), -demands[index].nbytes))


def greedy(demands: Sequence[Demand], ranks: int, cost: Cost) -> SenderAssignment:
    """For every receiver of every slice, the holder with the smallest accumulated seconds so far.

    The estimate of the slice itself is added after the choice: "selects the candidate sender with the smallest current
    accumulated latency". Of equals the first wins. A receiver that holds the slice copies it, at no cost.
    """
    load = [0.0] * ranks
    senders = array("l")
    for nbytes, holders, receivers in demands:
        held = set(holders)
        for receiver in receivers:
            if receiver in held:
                senders.append(receiver)
                continue
            sender = min(holders, key=load.__getitem__)
            load[sender] += cost(sender, receiver, nbytes)
            senders.append(sender)
    return SenderAssignment(senders, load)


def first_holder(demands: Sequence[Demand], ranks: int, cost: Cost) -> SenderAssignment:
    """The plain rule: the first rank that holds a slice sends it to all who need it and do not hold it."""
    load = [0.0] * ranks
    senders = array("l")
    for nbytes, holders, receivers in demands:
        held = set(holders)
        for receiver in receivers:
            sender = receiver if receiver in held else holders[0]
            if sender != receiver:
                load[sender] += cost(sender, receiver, nbytes)
            senders.append(sender)
    return SenderAssignment(senders, load)
