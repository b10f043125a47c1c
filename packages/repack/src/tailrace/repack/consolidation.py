"""Best-fit trajectory consolidation (Laminar, Algorithm 1): which replicas are released, and where their trajectories go.

Where the paper leaves a choice:

* ramp-down is latched, see `tailrace.repack.load`;
* a replica that was chosen as a destination is never a source in the same plan. As printed, the algorithm could move its
  own load away and leave there what was planned onto it;
* each weight version is planned by itself, and `headroom` keeps room for the tokens that moved trajectories still generate.
Replicas of equal KV usage are ordered by name, and of equally full destinations the first by name is taken. So the plan does
not depend on the order of the loads.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tailrace.contracts import Move
from tailrace.repack.bins import LoadOrderedBins
from tailrace.repack.errors import LoadError
from tailrace.repack.load import ReplicaLoad, is_candidate


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
