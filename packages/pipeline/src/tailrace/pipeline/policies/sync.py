"""Axis sync: when a replica pulls weights, and when it may be given work, without interrupting anything."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tailrace.contracts import Cycle, Progress, ReplicaView, Sync


def _behind(replica: ReplicaView, progress: Progress) -> bool:
    return replica.version is None or replica.version < progress.published


@dataclass(frozen=True, slots=True)
class OnIdle:
    """Laminar, sections 3.2 and 5: a replica pulls when its batch is done or when repack has released it."""

    @property
    def mixes_versions(self) -> bool:
        """No: a trajectory has one version."""
        return False

    def pulls(self, cycle: Cycle) -> Sequence[Sync]:
        """Each idle replica that is behind."""
        return [
            Sync(view.replica, "it is idle and behind")
            for view in cycle.replicas
            if not view.pulling and view.in_flight == 0 and _behind(view, cycle.progress)
        ]

    def accepts(self, replica: ReplicaView, progress: Progress) -> bool:
        """A whole batch, once the last one is done and the weights are the newest."""
        return replica.in_flight == 0 and not _behind(replica, progress)


@dataclass(frozen=True, slots=True)
class Barrier:
    """Global synchronisation: all replicas pull together once all are idle. The baseline."""

    @property
    def mixes_versions(self) -> bool:
        """No: a trajectory has one version."""
        return False

    def pulls(self, cycle: Cycle) -> Sequence[Sync]:
        """All that are behind, when none has work."""
        if any(view.in_flight for view in cycle.replicas):
            return []
        return [
            Sync(view.replica, "all replicas are idle")
            for view in cycle.replicas
            if not view.pulling and _behind(view, cycle.progress)
        ]

    def accepts(self, replica: ReplicaView, progress: Progress) -> bool:
        """While it serves the newest version; more work may be added to what it has."""
        return not _behind(replica, progress) and replica.in_flight < replica.capacity
