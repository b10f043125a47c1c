"""Synchronisation without waiting (partial rollout): the greedy baseline of StaleFlow. Entry-point group ``tailrace.sync``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tailrace.contracts import Cycle, Progress, Reason, ReplicaView, Sync, Why


@dataclass(frozen=True, slots=True)
class Interrupting:
    """Each replica pulls a new version as soon as there is one, whatever it runs. Plugin ``interrupting``."""

    @property
    def mixes_versions(self) -> bool:
        """What is interrupted goes on under newer weights."""
        return True

    def pulls(self, cycle: Cycle) -> Sequence[Sync]:
        """Every replica that is behind, is not pulling already and is not pinned."""
        published = cycle.progress.published
        idle, busy = (Reason(why, "", {"version": published}) for why in (Why.BEHIND, Why.NEWER))
        return [
            Sync(view.replica, busy if view.in_flight else idle)
            for view in cycle.replicas
            if is_behind(view, published) and not view.pulling and not view.pinned
        ]

    def accepts(self, replica: ReplicaView, progress: Progress) -> bool:  # noqa: ARG002 - the protocol's arguments
        """Always."""
        return True


def is_behind(view: ReplicaView, published: int) -> bool:
    """Whether there is a version to pull that is newer than the replica's."""
    return published >= 0 and (view.version is None or view.version < published)
