"""Axis sync: when a replica pulls weights, and when it may be given work."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tailrace.contracts import Progress, ReplicaView


def _behind(replica: ReplicaView, progress: Progress) -> bool:
    return replica.version is None or replica.version < progress.published


@dataclass(frozen=True, slots=True)
class OnIdle:
    """Laminar, sections 3.2 and 5: a replica pulls when its batch is done or when repack has released it."""

    def pulls(self, replicas: Sequence[ReplicaView], progress: Progress) -> Sequence[str]:
        """Each idle replica that is behind."""
        return [replica.replica for replica in replicas if replica.in_flight == 0 and _behind(replica, progress)]

    def accepts(self, replica: ReplicaView, progress: Progress) -> bool:
        """A whole batch, once the last one is done and the weights are the newest."""
        return replica.in_flight == 0 and not _behind(replica, progress)


@dataclass(frozen=True, slots=True)
class Barrier:
    """Global synchronisation: all replicas pull together once all are idle. The baseline."""

    def pulls(self, replicas: Sequence[ReplicaView], progress: Progress) -> Sequence[str]:
        """All that are behind, when none has work."""
        if any(replica.in_flight for replica in replicas):
            return []
        return [replica.replica for replica in replicas if _behind(replica, progress)]

    def accepts(self, replica: ReplicaView, progress: Progress) -> bool:
        """While it serves the newest version; more work may be added to what it has."""
        return not _behind(replica, progress) and replica.in_flight < replica.capacity
