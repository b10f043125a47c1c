"""The load of a replica as consolidation sees it, and who is a candidate (Laminar section 5.2, Algorithm 1, line 3)."""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass

from tailrace.repack.errors import LoadError


@dataclass(frozen=True, slots=True)
class ReplicaLoad:
    """The load of one replica at a moment.

    KV usage may be a share of the cache, bytes or tokens, as long as `kv_threshold` is in the same unit.

    Args:
        replica: its name; a plan is over distinct names.
        version: the weight version that it serves.
        kv_used: KV cache in use.
        kv_used_before: the same at the previous periodic sample (C_prev; every 5 s by default).
        requests: its unfinished trajectories (N_reqs), those queued inside the engine included.
        kv_peak: the highest usage since it was last given work, where that is known.
        waiting: trajectories queued inside the engine.
        ramp_down: usage has fallen below its peak since it was last given work; None derives it, see `ramping_down`.

    Raises:
        LoadError: a usage that is negative or not finite, or a negative count.
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

    def __post_init__(self) -> None:
        for name in ("kv_used", "kv_used_before", "kv_peak"):
            value = getattr(self, name)
            if value is not None and not (value >= 0 and math.isfinite(value)):
                raise LoadError(
                    f"replica {self.replica}: found {name}={value!r}, expected a finite number of at least 0"
                )
        for name in ("requests", "waiting"):
            if getattr(self, name) < 0:
                raise LoadError(f"replica {self.replica}: found {name}={getattr(self, name)}, expected at least 0")

    @property
    def ramping_down(self) -> bool:
        """Whether usage has fallen below the highest that is known of: `ramp_down`, else `kv_peak`, else the last sample.

        A few long trajectories grow their KV cache at every step, so usage between two samples may rise although the
        replica is in its long tail. The latch (`ramp_down` or `kv_peak`) sees through that; the five plain fields cannot,
        and then this is the comparison that Algorithm 1 prints.
        """
        if self.ramp_down is not None:
            return self.ramp_down
        return self.kv_used < (self.kv_used_before if self.kv_peak is None else self.kv_peak)


def is_candidate(load: ReplicaLoad, *, kv_threshold: float, roofline_batch: int, literal: bool) -> bool:
    """Whether a replica is in its long tail, so that it may be released or may take others in.

    Args:
        kv_threshold: C_max.
        roofline_batch: B.
        literal: the rule as printed: C_used < min(C_max, C_prev) and N_reqs < B. Otherwise ramp-down is latched and the
            engine's queue must be empty. A replica without trajectories has nothing to move either way.
    """
    if not 0 < load.requests < roofline_batch or load.kv_used >= kv_threshold:
        return False
    if literal:
        return load.kv_used < load.kv_used_before
    return load.waiting == 0 and load.ramping_down
