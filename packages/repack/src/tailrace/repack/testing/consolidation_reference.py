"""Laminar's Algorithm 1 line by line, in O(n^2) or more. Tests and the benchmark compare the fast planner with it."""

from __future__ import annotations

from collections.abc import Sequence

from tailrace.contracts import Move
from tailrace.repack.consolidation import candidates_by_version
from tailrace.repack.load import ReplicaLoad


def consolidate_slowly(
    loads: Sequence[ReplicaLoad],
    *,
    kv_threshold: float,
    roofline_batch: int,
    headroom: float = 0.0,
    literal: bool = False,
) -> list[Move]:
    """The same plan as `tailrace.repack.consolidate`, computed by plain scans; see there for the arguments."""
    moves: list[Move] = []
    for candidates in candidates_by_version(
        loads, kv_threshold=kv_threshold, roofline_batch=roofline_batch, headroom=headroom, literal=literal
    ):
        kv = {load.replica: load.planned for load in candidates}
        requests = {load.replica: load.requests for load in candidates}
        emptied: set[str] = set()
        pinned: set[str] = set()
        for source in candidates:
            if source.replica in pinned:
                continue
            best: str | None = None
            for other in candidates:
                name = other.replica
                if name in emptied or name == source.replica:
                    continue
                if kv[name] + source.planned > kv_threshold - headroom:
                    continue
                if requests[name] + source.requests > roofline_batch:
                    continue
                if best is None or kv[name] > kv[best]:
                    best = name
            if best is not None:
                moves.append(Move(source.replica, best))
                kv[best] += source.planned
                requests[best] += source.requests
                emptied.add(source.replica)
                pinned.add(best)
    return moves
