"""Laminar's Algorithm 1 line by line, in O(n^2) or more. Tests and the benchmark compare the fast planner with it.

Nothing here calls a function of the code under test: only the fields of `ReplicaLoad` are read.
"""

from __future__ import annotations

from collections.abc import Sequence

from tailrace.contracts import Move
from tailrace.repack.consolidation import ReplicaLoad


def consolidate_slowly(
    loads: Sequence[ReplicaLoad],
    *,
    kv_threshold: float,
    roofline_batch: int,
    headroom: float = 0.0,
    literal: bool = False,
) -> list[Move]:
    """The same plan as `tailrace.repack.consolidate`, by plain scans; see there for the arguments, which must be right."""
    plan: list[Move] = []
    for version in sorted({load.version for load in loads}):
        replicas = [load for load in loads if load.version == version]
        candidates = [load for load in replicas if _line_3(load, kv_threshold, roofline_batch, literal)]
        candidates.sort(key=lambda load: load.replica)
        candidates.sort(key=_used)  # line 4; stable, so equal ones stay in the order of their names
        plan += _lines_5_to_13(candidates, kv_threshold - headroom, roofline_batch)
    return plan


def _used(load: ReplicaLoad) -> float:
    """C_used, or the highest usage until the end where that is projected."""
    return load.kv_used if load.kv_projected is None else max(load.kv_projected, load.kv_used)


def _line_3(load: ReplicaLoad, c_max: float, b: int, literal: bool) -> bool:
    """Whether a replica is in S: C_used < min(C_max, C_prev) and N_reqs < B, where ramp-down may be latched."""
    if load.requests == 0 or load.requests >= b:
        return False
    if literal:
        return load.kv_used < min(c_max, load.kv_used_before)
    if load.waiting > 0 or load.kv_used >= c_max:
        return False
    if load.ramp_down is not None:
        return load.ramp_down
    c_prev = load.kv_peak if load.kv_peak is not None else load.kv_used_before
    return load.kv_used < c_prev


def _lines_5_to_13(candidates: Sequence[ReplicaLoad], c_max: float, b: int) -> list[Move]:
    kv = {load.replica: _used(load) for load in candidates}
    requests = {load.replica: load.requests for load in candidates}
    plan: list[Move] = []
    emptied: set[str] = set()
    filled: set[str] = set()  # as printed, a destination might leave later and strand what was moved there
    for source in candidates:
        if source.replica in filled:
            continue
        best: str | None = None
        for name in [load.replica for load in candidates]:
            if name in emptied or name == source.replica:
                continue
            if kv[name] + _used(source) > c_max or requests[name] + source.requests > b:
                continue  # CanFit
            if best is None or kv[name] > kv[best]:
                best = name
        if best is not None:
            plan.append(Move(source.replica, best))
            kv[best] += _used(source)
            requests[best] += source.requests
            emptied.add(source.replica)
            filled.add(best)
    return plan
