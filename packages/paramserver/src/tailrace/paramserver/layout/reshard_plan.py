"""The reshard plan between two layouts: its slices, and which rank sends which to which rank (StaleFlow, Appendix A.2).

`greedy` is the paper's load-balancing rule, `first_holder` the plain rule that it is compared with; to both, ranks are
numbers in order of their names.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, NamedTuple

from tailrace.paramserver.errors import LayoutInvalid, LayoutMismatch
from tailrace.paramserver.layout.boxes import Box, Grid, volume
from tailrace.paramserver.layout.sharding import MAX_CELLS, Layout
from tailrace.paramserver.manifest import DTYPES

# The common slices of two layouts: every tensor cut where either layout cuts it (StaleFlow, Appendix A.2).
#
# A slice lies inside one piece of each rank that holds any of it, so it can be sent and received in one go.


class Slice(NamedTuple):
    """A box of a tensor that travels as one.

    Args:
        tensor: its name.
        box: the elements.
        nbytes: its size.
    """

    tensor: str
    box: Box
    nbytes: int


class NeededSlice(NamedTuple):
    """A slice, who holds it and who needs it: indices of `Layout.groups` of the source and of the target."""

    slice: Slice
    holders: tuple[int, ...]
    needers: tuple[int, ...]


Held = tuple[tuple[int, Box], ...]  # (index of the group, box) of one tensor


def common_slices(source: Layout, target: Layout) -> list[NeededSlice]:
    """All slices that the target needs, in order of tensors and, within one, of boxes.

    Raises:
        LayoutMismatch: the two layouts are not of one model; names the tensor.
        LayoutInvalid: the layouts together cut a tensor into more than a million cells.
    """
    check_same_model(source, target)
    holds, needs = _held(source), _held(target)
    # Layers of one kind are cut alike: their cells are worked out once.
    known: dict[tuple[tuple[int, ...], Held, Held], list[tuple[Box, int, tuple[int, ...], tuple[int, ...]]]] = {}
    found = []
    for name, dtype, shape in source.tensors:
        key = (shape, tuple(holds[name]), tuple(needs[name]))
        if key not in known:
            known[key] = _cells(name, *key)
        size = DTYPES[dtype]
        found += [
            NeededSlice(Slice(name, box, elements * size), holders, needers)
            for box, elements, holders, needers in known[key]
        ]
    return found


def check_same_model(source: Layout, target: Layout) -> None:
    """Check that two layouts are of one model.

    Raises:
        LayoutMismatch: a tensor is missing in one of them, or its dtype or shape differs.
    """
    if source.tensors == target.tensors:
        return
    for name in sorted(source.tensor.keys() ^ target.tensor.keys()):
        where, other = ("source", "target") if name in source.tensor else ("target", "source")
        raise LayoutMismatch(f"{name!r}: found in the {where} layout only, expected in the {other} layout too")
    for tensor in source.tensors:
        other_tensor = target.tensor[tensor.name]
        if tensor != other_tensor:
            raise LayoutMismatch(
                f"{tensor.name!r}: found {other_tensor.dtype} {other_tensor.shape} in the target layout, "
                f"expected {tensor.dtype} {tensor.shape} as in the source layout"
            )


def _held(layout: Layout) -> dict[str, list[tuple[int, Box]]]:
    held: dict[str, list[tuple[int, Box]]] = {tensor.name: [] for tensor in layout.tensors}
    for number, (shard, _) in enumerate(layout.groups):
        for name, found in shard.pieces.items():
            held[name] += [(number, piece.box) for _, piece in found]
    return held


def _cells(
    name: str, shape: tuple[int, ...], holds: Held, needs: Held
) -> list[tuple[Box, int, tuple[int, ...], tuple[int, ...]]]:
    if 0 in shape:
        return []
    grid = Grid(shape, [box for _, box in (*holds, *needs)])
    if grid.cells > MAX_CELLS:
        raise LayoutInvalid(f"{name!r}: the two layouts cut it into {grid.cells} cells, expected at most {MAX_CELLS}")
    needers, holders = _owners(grid, needs), _owners(grid, holds)
    return [
        (box := grid.box(cell), volume(box), tuple(holders[cell]), tuple(groups))
        for cell, groups in sorted(needers.items())
    ]


def _owners(grid: Grid, held: Sequence[tuple[int, Box]]) -> dict[tuple[int, ...], list[int]]:
    owners: dict[tuple[int, ...], list[int]] = {}
    for group, box in held:
        for cell in grid.within(box):
            owners.setdefault(cell, []).append(group)
    return owners


Rank = str


@dataclass(frozen=True, slots=True)
class LinkCosts:
    """Seconds to move a slice: bytes / bandwidth(sender, receiver) + a constant latency (StaleFlow, Figure 22).

    Both can be measured before training. Only differences between senders change a plan, so one bandwidth for all is
    right where all links are alike.

    Args:
        bandwidth: bytes per second between two ranks that `between` does not name.
        latency_s: constant seconds per slice.
        between: bytes per second for (sender, receiver).

    Raises:
        ValueError: a bandwidth is not above 0, or the latency is below 0.
    """

    bandwidth: float = 12.5e9
    latency_s: float = 10e-6
    between: Mapping[tuple[Rank, Rank], float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for pair, value in (("other links", self.bandwidth), *self.between.items()):
            if not 0 < value < float("inf"):
                raise ValueError(f"bandwidth of {pair}: found {value}, expected bytes per second above 0")
        if not 0 <= self.latency_s < float("inf"):
            raise ValueError(f"latency_s: found {self.latency_s}, expected seconds from 0")

    def bytes_per_s(self, sender: Rank, receiver: Rank) -> float:
        """Bandwidth from a sender to a receiver."""
        return self.between.get((sender, receiver), self.bandwidth)

    @property
    def key(self) -> tuple[object, ...]:
        """Equal for two estimates that give the same plans."""
        return (self.bandwidth, self.latency_s, tuple(sorted(self.between.items())))


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


class Planner:
    """Makes reshard plans and keeps them, by the content of the two layouts. For one thread.

    Args:
        links: estimates of the links.
        capacity: how many plans to keep; the one unused for longest goes first.
    """

    def __init__(self, links: LinkCosts | None = None, *, capacity: int = 16) -> None:
        if capacity < 1:
            raise ValueError(f"capacity: found {capacity}, expected at least 1")
        self._links = links or LinkCosts()
        self._capacity = capacity
        self._kept: OrderedDict[tuple[object, ...], ReshardPlan] = OrderedDict()
        #: How many plans were made.
        self.made = 0

    def plan(self, source: Layout, target: Layout) -> ReshardPlan:
        """The plan between two layouts: the one that was made before, if there is one.

        Raises:
            LayoutMismatch, LayoutInvalid: see `reshard_plan`.
        """
        key = (source.digest, target.digest)
        if key in self._kept:
            self._kept.move_to_end(key)
            return self._kept[key]
        plan = self._kept[key] = reshard_plan(source, target, self._links)
        self.made += 1
        if len(self._kept) > self._capacity:
            self._kept.popitem(last=False)
        return plan

    def profiled(self, links: LinkCosts) -> None:
        """Take new estimates of the links. Plans are made anew if they differ from the old ones."""
        if links.key != self._links.key:
            self._kept.clear()
        self._links = links
