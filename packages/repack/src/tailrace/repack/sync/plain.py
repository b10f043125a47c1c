"""The simple ways to synchronise: each replica when idle (Laminar), all together, or at once by interruption."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tailrace.contracts import Cycle, Progress, Reason, ReplicaView, Sync, SyncPolicy, Why


@dataclass(frozen=True, slots=True)
class OnIdle(SyncPolicy):
    """A replica pulls when its batch is done or when repack has released it (Laminar, sections 3.2 and 5)."""

    @property
    def mixes_versions(self) -> bool:
        """No: a trajectory has one version."""
        return False

    def pulls(self, cycle: Cycle) -> Sequence[Sync]:
        """Each idle replica that is behind. One whose trajectories are all in environments is not idle: they come back."""
        return _pull([view for view in may_pull(cycle) if not view.in_flight], cycle, Why.BEHIND)

    def accepts(self, replica: ReplicaView, progress: Progress) -> bool:
        """Whether it has finished its last batch and serves the newest version."""
        return replica.in_flight == 0 and _is_current(replica, progress)


@dataclass(frozen=True, slots=True)
class Barrier(SyncPolicy):
    """Global synchronisation: all replicas pull together once all are idle. The baseline."""

    @property
    def mixes_versions(self) -> bool:
        """No: a trajectory has one version."""
        return False

    def pulls(self, cycle: Cycle) -> Sequence[Sync]:
        """All replicas that are behind, when none has work."""
        return () if any(view.in_flight for view in cycle.replicas) else _pull(may_pull(cycle), cycle, Why.ALL_IDLE)

    def accepts(self, replica: ReplicaView, progress: Progress) -> bool:
        """Whether it serves the newest version and has room; it may have work already."""
        return _is_current(replica, progress) and replica.held < replica.capacity


@dataclass(frozen=True, slots=True)
class Interrupting(SyncPolicy):
    """Partial rollout (StaleFlow's greedy baseline): each replica pulls a new version at once and interrupts its work."""

    @property
    def mixes_versions(self) -> bool:
        """An interrupted trajectory continues under newer weights."""
        return True

    def pulls(self, cycle: Cycle) -> Sequence[Sync]:
        """Every replica that is behind, is not pulling already and is not pinned."""
        published = cycle.progress.published
        idle, busy = (Reason(why, "", {"version": published}) for why in (Why.BEHIND, Why.NEWER))
        return [Sync(view.replica, busy if view.in_flight else idle) for view in may_pull(cycle)]

    def accepts(self, replica: ReplicaView, progress: Progress) -> bool:  # noqa: ARG002 - the protocol's arguments
        """Take whatever is routed here."""
        return True


def may_pull(cycle: Cycle) -> list[ReplicaView]:
    """The replicas that are behind the newest published version, are not pulling already and are not pinned."""
    published = cycle.progress.published
    return [view for view in cycle.replicas if is_behind(view, published) and not view.pulling and not view.pinned]


def is_behind(view: ReplicaView, published: int) -> bool:
    """Whether there is a version to pull that is newer than the replica's."""
    return published >= 0 and (view.version is None or view.version < published)


def _is_current(replica: ReplicaView, progress: Progress) -> bool:
    return replica.version is not None and not is_behind(replica, progress.published)


def _pull(views: Sequence[ReplicaView], cycle: Cycle, why: Why) -> list[Sync]:
    reason = Reason(why, numbers={"version": cycle.progress.published})
    return [Sync(view.replica, reason) for view in views]
