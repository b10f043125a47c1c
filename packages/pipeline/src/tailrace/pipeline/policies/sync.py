"""Axis sync: when a replica pulls weights, and when it may be given work, without interrupting anything."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tailrace.contracts import Cycle, Progress, Reason, ReplicaView, Sync, Why
from tailrace.repack.interrupting import is_behind


@dataclass(frozen=True, slots=True)
class OnIdle:
    """Laminar, sections 3.2 and 5: a replica pulls when its batch is done or when repack has released it."""

    @property
    def mixes_versions(self) -> bool:
        """No: a trajectory has one version."""
        return False

    def pulls(self, cycle: Cycle) -> Sequence[Sync]:
        """Each idle replica that is behind."""
        return _pulls(cycle, Why.BEHIND)

    def accepts(self, replica: ReplicaView, progress: Progress) -> bool:
        """A whole batch, once the last one is done and the weights are the newest."""
        return replica.in_flight == 0 and _is_current(replica, progress)


@dataclass(frozen=True, slots=True)
class Barrier:
    """Global synchronisation: all replicas pull together once all are idle. The baseline."""

    @property
    def mixes_versions(self) -> bool:
        """No: a trajectory has one version."""
        return False

    def pulls(self, cycle: Cycle) -> Sequence[Sync]:
        """All that are behind, when none has work."""
        return () if any(view.in_flight for view in cycle.replicas) else _pulls(cycle, Why.ALL_IDLE)

    def accepts(self, replica: ReplicaView, progress: Progress) -> bool:
        """While it serves the newest version; more work may be added to what it has."""
        return _is_current(replica, progress) and replica.in_flight < replica.capacity


def _is_current(replica: ReplicaView, progress: Progress) -> bool:
    return replica.version is not None and replica.version >= progress.published


def _pulls(cycle: Cycle, why: Why) -> list[Sync]:
    """Every idle replica that is behind, for one reason."""
    published = cycle.progress.published
    reason = Reason(why, numbers={"version": published})
    return [
        Sync(view.replica, reason)
        for view in cycle.replicas
        if not (view.in_flight or view.pulling or view.pinned) and is_behind(view, published)
    ]
