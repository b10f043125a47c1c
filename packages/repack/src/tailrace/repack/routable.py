"""Whether any trajectory of the pool may run at a version, regardless of the gain (StaleFlow, Algorithm 2)."""

from __future__ import annotations

from tailrace.contracts import Cycle


def may_run_at(version: int, cycle: Cycle, *, opened: bool) -> bool:
    """Whether any trajectory of the pool may run on a replica that serves a version (Algorithm 2).

    Asking admission changes nothing: a group gets its version only when its first trajectory is routed.

    Args:
        version: the version that the replica serves.
        cycle: the pool and admission.
        opened: whether the replica may be given groups that have not started.
    """
    for oldest, queue in cycle.pool.items():
        if not queue:
            continue
        if oldest is None:
            if opened and cycle.admits.allows(version):
                return True
        elif oldest == version or (oldest < version and any(not view.exact for view in queue.values())):
            return True
    return False
