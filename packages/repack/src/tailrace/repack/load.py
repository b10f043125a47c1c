"""The load of a replica for consolidation, and which replicas are candidates (Laminar section 5.2, Algorithm 1, line 3)."""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass

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
