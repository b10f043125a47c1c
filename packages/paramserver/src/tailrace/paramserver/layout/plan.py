"""The reshard plan between two layouts: which rank sends which slice to which rank."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

from tailrace.paramserver.layout.greedy import Cost, Demand, by_scarcity, first_holder, greedy
from tailrace.paramserver.layout.links import LinkCosts
from tailrace.paramserver.layout.sharding import Layout
from tailrace.paramserver.layout.slices import Slice, common_slices


class Transfer(NamedTuple):
    """A slice on its way. A copy within one rank has the same sender and receiver."""

    slice: Slice
    sender: str
    receiver: str


@dataclass(frozen=True)
class ReshardPlan:
    """A static assignment: made once for two layouts, then used for every version.

    Every element that a rank holds in the target layout arrives there exactly once, from a rank that holds it in the
    source layout.

    Args:
        source: layout of the senders.
        target: layout of the receivers.
        rule: `greedy`, or `first holder` where that one's busiest sender has less to do than the greedy rule's.
        load_s: each sender's accumulated estimate, in seconds. Copies within a rank are free.
        slices: all slices that travel.
        ranks: names of the ranks that the numbers below stand for.
        slice_of, sender_of, receiver_of: for every transfer, the numbers of its slice and ranks.
    """

    source: Layout
    target: Layout
    rule: Literal["greedy", "first holder"]
    load_s: Mapping[str, float]
    slices: tuple[Slice, ...]
    ranks: tuple[str, ...]
    slice_of: array[int]
    sender_of: array[int]
    receiver_of: array[int]

    def __len__(self) -> int:
        """Number of transfers."""
        return len(self.slice_of)

    def __iter__(self) -> Iterator[Transfer]:
        """The transfers."""
        for number, sender, receiver in zip(self.slice_of, self.sender_of, self.receiver_of, strict=True):
            yield Transfer(self.slices[number], self.ranks[sender], self.ranks[receiver])

    @cached_property
    def pairs(self) -> Mapping[tuple[str, str], array[int]]:
        """The (sender, receiver) pairs that have something to move, and the numbers of their slices."""
        found: dict[tuple[int, int], array[int]] = {}
        for number, sender, receiver in zip(self.slice_of, self.sender_of, self.receiver_of, strict=True):
            found.setdefault((sender, receiver), array("l")).append(number)
        return {(self.ranks[a], self.ranks[b]): numbers for (a, b), numbers in sorted(found.items())}

    def receivers(self, sender: str) -> list[str]:
        """Ranks that a rank sends to, itself included where it copies."""
        return [b for a, b in self.pairs if a == sender]

    def senders(self, receiver: str) -> list[str]:
        """Ranks that a rank receives from, itself included where it copies."""
        return [a for a, b in self.pairs if b == receiver]

    @property
    def bytes_moved(self) -> int:
        """Bytes that cross from one rank to another."""
        return sum(item.slice.nbytes for item in self if item.sender != item.receiver)

    @property
    def busiest_s(self) -> float:
        """The estimate of the sender with the most to do, in seconds: how long the plan takes if receivers keep up."""
        return max(self.load_s.values(), default=0.0)


def reshard_plan(source: Layout, target: Layout, links: LinkCosts | None = None) -> ReshardPlan:
    """Plan how the ranks of `target` get their parts from the ranks of `source`.

    Greedy assignment can end worse than the plain rule on lopsided holdings (a slice that only the sender has that just
    got the large ones); the plain rule's plan is used then, so that no plan is worse than it.

    Args:
        source: the layout of the senders.
        target: the layout of the receivers.
        links: estimates of the links; by default all are alike.

    Raises:
        LayoutMismatch: the two layouts are not of one model; names the tensor.
        LayoutInvalid: the layouts together cut a tensor into more than a million cells.
    """
    ranks = tuple(sorted(source.shards.keys() | target.shards.keys()))
    number = {rank: index for index, rank in enumerate(ranks)}
    members = [_members(layout, number) for layout in (source, target)]
    holders_of: dict[tuple[int, ...], tuple[int, ...]] = {}
    needers_of: dict[tuple[int, ...], tuple[int, ...]] = {}
    demands, slices = [], []
    for piece, holders, needers in common_slices(source, target):
        if holders not in holders_of:
            holders_of[holders] = _union(members[0], holders)
        if needers not in needers_of:
            needers_of[needers] = _union(members[1], needers)
        demands.append(Demand(piece.nbytes, holders_of[holders], needers_of[needers]))
        slices.append(piece)
    order = by_scarcity(demands)
    demands = [demands[index] for index in order]
    cost = _cost(links or LinkCosts(), ranks)
    chosen, plain = greedy(demands, len(ranks), cost), first_holder(demands, len(ranks), cost)
    rule: Literal["greedy", "first holder"] = "greedy"
    if max(plain.load_s) < max(chosen.load_s):
        chosen, rule = plain, "first holder"
    slice_of, receiver_of = array("l"), array("l")
    for index, demand in zip(order, demands, strict=True):
        slice_of.extend([index] * len(demand.receivers))
        receiver_of.extend(demand.receivers)
    load_s = {rank: chosen.load_s[number[rank]] for rank in source.shards}
    return ReshardPlan(source, target, rule, load_s, tuple(slices), ranks, slice_of, chosen.senders, receiver_of)


def _members(layout: Layout, number: Mapping[str, int]) -> list[list[int]]:
    return [[number[rank] for rank in ranks] for _, ranks in layout.groups]


def _union(members: list[list[int]], groups: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(sorted(rank for group in groups for rank in members[group]))


def _cost(links: LinkCosts, ranks: tuple[str, ...]) -> Cost:
    if not links.between:
        bandwidth, latency_s = links.bandwidth, links.latency_s
        return lambda _sender, _receiver, nbytes: nbytes / bandwidth + latency_s
    known: dict[tuple[int, int], float] = {}

    def cost(sender: int, receiver: int, nbytes: int) -> float:
        pair = (sender, receiver)
        if pair not in known:
            known[pair] = links.bytes_per_s(ranks[sender], ranks[receiver])
        return nbytes / known[pair] + links.latency_s

    return cost
