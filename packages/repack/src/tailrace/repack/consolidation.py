"""Best-fit trajectory consolidation (Laminar, Algorithm 1): which replicas are released, and where their trajectories go.

Where the paper leaves a choice:

* ramp-down is latched, see `is_candidate`;
* a replica that was chosen as a destination is never a source in the same plan. As printed, the algorithm could move its
  own load away and leave there what was planned onto it;
* each weight version is planned by itself, and `headroom` keeps room for the tokens that moved trajectories still generate.
Replicas of equal KV usage are ordered by name, and of equally full destinations the first by name is taken. So the plan does
not depend on the order of the loads.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass

from tailrace.contracts import Move
from tailrace.repack.errors import LoadError


@dataclass(frozen=True, slots=True)
class ReplicaLoad:
    """The load of one replica at a moment.

    KV usage may be a share of the cache, bytes or tokens, as long as `kv_threshold` is in the same unit.

    Args:
        replica: the replica's name, unique within a plan.
        version: the weight version that it serves.
        kv_used: KV cache in use.
        kv_used_before: KV cache in use at the previous periodic sample (C_prev; every 5 s by default).
        requests: its unfinished trajectories (N_reqs), including those queued inside the engine.
        kv_peak: the highest usage since it was last given work; None if unknown.
        waiting: trajectories queued inside the engine.
        ramp_down: whether usage has fallen below its peak since it was last given work; None: see `ramping_down`.
        kv_projected: the highest usage until its trajectories have ended (`peak_kv`), which is then planned with; None: what is
            in use.

    Raises:
        LoadError: a usage is negative or not finite, or a count is negative.
    """

    replica: str
    version: int
    kv_used: float
    kv_used_before: float
    requests: int
    _: KW_ONLY
    kv_peak: float | None = None
    waiting: int = 0
    ramp_down: bool | None = None
    kv_projected: float | None = None

    def __post_init__(self) -> None:
        for name in ("kv_used", "kv_used_before", "kv_peak", "kv_projected"):
            value = getattr(self, name)
            if value is not None and not (value >= 0 and math.isfinite(value)):
                raise LoadError(
                    f"replica {self.replica}: found {name}={value!r}, expected a finite number of at least 0"
                )
        for name in ("requests", "waiting"):
            if getattr(self, name) < 0:
                raise LoadError(f"replica {self.replica}: found {name}={getattr(self, name)}, expected at least 0")

    @property
    def planned(self) -> float:
        """The usage that a plan counts with."""
        return self.kv_used if self.kv_projected is None else max(self.kv_used, self.kv_projected)

    @property
    def ramping_down(self) -> bool:
        """Whether usage has fallen: as `ramp_down` says, else compared with `kv_peak`, else with the previous sample.

        Each step of a few long trajectories grows their KV cache, so usage may rise between two samples although the replica
        is in its long tail. `ramp_down` and `kv_peak` are not misled by that. Without them, this is the comparison of
        Algorithm 1 as printed.
        """
        if self.ramp_down is not None:
            return self.ramp_down
        return self.kv_used < (self.kv_used_before if self.kv_peak is None else self.kv_peak)


def is_candidate(load: ReplicaLoad, *, kv_threshold: float, roofline_batch: int, literal: bool) -> bool:
    """Whether a replica is in its long tail, so that it may be released or may take others in.

    Args:
        load: the replica's load.
        kv_threshold: C_max, in the unit of the load.
        roofline_batch: B.
        literal: the rule as printed: C_used < min(C_max, C_prev) and N_reqs < B. Otherwise ramp-down is latched and the
            engine's queue must be empty. Under both rules, a replica without trajectories is no candidate.
    """
    if not 0 < load.requests < roofline_batch or load.kv_used >= kv_threshold:
        return False
    if literal:
        return load.kv_used < load.kv_used_before
    return load.waiting == 0 and load.ramping_down


# (load, minus the rank, requests): among equal loads the lowest rank sorts last, so a search downwards finds it first.
Bin = tuple[float, int, int]

_BLOCK = 32


class LoadOrderedBins:
    """Bins in ascending order of load, for best fit under a limit on requests in about sqrt(n) steps; a plain scan takes n.

    They lie in short blocks. Each block stores the fewest requests of its bins, so a search from the fullest bin downwards
    skips every block in which no bin has room for the requests.

    Args:
        bins: the bins in ascending order of load.
    """

    def __init__(self, bins: Sequence[Bin]) -> None:
        self._blocks = [list(bins[start : start + _BLOCK]) for start in range(0, len(bins), _BLOCK)]
        self._fewest = [_fewest(block) for block in self._blocks]

    def add(self, entry: Bin) -> None:
        """Add a bin."""
        position = self._position(entry)
        if position == len(self._blocks):
            if not self._blocks:
                self._blocks.append([])
                self._fewest.append(entry[2])
            position = len(self._blocks) - 1
        block = self._blocks[position]
        insort(block, entry)
        if len(block) > 2 * _BLOCK:
            self._blocks[position : position + 1] = [block[:_BLOCK], block[_BLOCK:]]
            self._fewest[position : position + 1] = [_fewest(block[:_BLOCK]), _fewest(block[_BLOCK:])]
        else:
            self._fewest[position] = min(self._fewest[position], entry[2])

    def remove(self, entry: Bin) -> bool:
        """Remove a bin. Returns whether it was there."""
        position = self._position(entry)
        if position == len(self._blocks):
            return False
        block = self._blocks[position]
        index = bisect_left(block, entry)
        if index == len(block) or block[index] != entry:
            return False
        del block[index]
        if not block:
            self._drop(position)
        elif entry[2] == self._fewest[position]:
            self._fewest[position] = _fewest(block)
        return True

    def drop_above(self, limit: float, extra: float) -> None:
        """Forget every bin whose load plus `extra` exceeds `limit`."""
        blocks = self._blocks
        while blocks and blocks[-1][-1][0] + extra > limit:
            block = blocks[-1]
            fewest_may_change = False
            while block and block[-1][0] + extra > limit:
                fewest_may_change |= block.pop()[2] == self._fewest[-1]
            if not block:
                self._drop(len(blocks) - 1)
            elif fewest_may_change:
                self._fewest[-1] = _fewest(block)

    def fullest(self, requests: int) -> Bin | None:
        """The bin of greatest load among those that hold at most this many requests."""
        for position in range(len(self._blocks) - 1, -1, -1):
            if self._fewest[position] <= requests:
                return next(entry for entry in reversed(self._blocks[position]) if entry[2] <= requests)
        return None

    def _position(self, entry: Bin) -> int:
        """The only block that may hold the bin: the first whose greatest bin is not below it."""
        low, high = 0, len(self._blocks)
        while low < high:
            middle = (low + high) // 2
            if self._blocks[middle][-1] < entry:
                low = middle + 1
            else:
                high = middle
        return low

    def _drop(self, position: int) -> None:
        del self._blocks[position], self._fewest[position]


def _fewest(block: Sequence[Bin]) -> int:
    return min(entry[2] for entry in block)


def consolidate(
    loads: Sequence[ReplicaLoad],
    *,
    kv_threshold: float,
    roofline_batch: int,
    headroom: float = 0.0,
    literal: bool = False,
) -> list[Move]:
    """Plan moves that release as many replicas as best fit finds (Laminar section 5.2, Algorithm 1).

    Args:
        loads: replicas, in any order and of any versions. Each name once.
        kv_threshold: C_max, 0.99 of the KV cache in the paper; in the unit of the loads.
        roofline_batch: B, trajectories that decode together at little more latency than one.
        headroom: KV usage to keep free below `kv_threshold` on every destination, in the same unit.
        literal: choose candidates by the rule as printed, without the latch.

    Returns:
        Moves in the order in which they were planned, the oldest version first. No replica is both a source and a
        destination, and both serve the same version. After the plan each destination has at most
        ``kv_threshold - headroom`` of KV usage, projected where that is given, and `roofline_batch` requests.

    Raises:
        LoadError: a replica occurs twice, or a limit is out of its range.
    """
    groups = candidates_by_version(
        loads, kv_threshold=kv_threshold, roofline_batch=roofline_batch, headroom=headroom, literal=literal
    )
    capacity = kv_threshold - headroom
    return [move for group in groups for move in _plan(group, capacity, roofline_batch)]


def candidates_by_version(
    loads: Sequence[ReplicaLoad], *, kv_threshold: float, roofline_batch: int, headroom: float, literal: bool
) -> list[list[ReplicaLoad]]:
    """The candidate set S of each version, oldest version first, each sorted by planned KV usage (lines 3 and 4).

    Raises:
        LoadError: as for `consolidate`.
    """
    if not (math.isfinite(kv_threshold) and kv_threshold > 0):
        raise LoadError(f"found kv_threshold={kv_threshold!r}, expected a finite number above 0")
    if not 0 <= headroom < kv_threshold:
        raise LoadError(f"found headroom={headroom!r}, expected at least 0 and less than kv_threshold={kv_threshold!r}")
    if roofline_batch < 1:
        raise LoadError(f"found roofline_batch={roofline_batch!r}, expected at least 1")
    seen: set[str] = set()
    groups: dict[int, list[ReplicaLoad]] = {}
    for load in loads:
        if load.replica in seen:
            raise LoadError(f"found replica {load.replica!r} twice, expected one load for each replica")
        seen.add(load.replica)
        if is_candidate(load, kv_threshold=kv_threshold, roofline_batch=roofline_batch, literal=literal):
            groups.setdefault(load.version, []).append(load)
    return [
        sorted(group, key=lambda load: (load.planned, load.replica))
        for _, group in sorted(groups.items(), key=lambda item: item[0])
    ]


def _plan(candidates: Sequence[ReplicaLoad], capacity: float, batch: int) -> list[Move]:
    """Lines 6 to 13 over one version's candidates, in ascending order of planned KV usage.

    Sources come in ascending order and bins only fill up. So a bin that is too full for one source is too full for every
    later one and is dropped; the search then needs to check only the limit on requests.
    """
    bins = LoadOrderedBins(sorted((load.planned, -rank, load.requests) for rank, load in enumerate(candidates)))
    pinned: set[int] = set()
    moves: list[Move] = []
    for rank, source in enumerate(candidates):
        if rank in pinned:
            continue
        bins.drop_above(capacity, source.planned)
        own = (source.planned, -rank, source.requests)
        was_there = bins.remove(own)
        destination = bins.fullest(batch - source.requests)
        if destination is None:
            if was_there:
                bins.add(own)
            continue
        load, key, requests = destination
        bins.remove(destination)
        bins.add((load + source.planned, key, requests + source.requests))
        pinned.add(-key)
        moves.append(Move(source.replica, candidates[-key].replica))
    return moves
