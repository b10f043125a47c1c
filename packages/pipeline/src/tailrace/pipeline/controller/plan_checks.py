"""Checks the plans of sync and relocation policies against their contracts, before any of it is carried out."""

from __future__ import annotations

from collections.abc import Sequence

from tailrace.contracts import Cycle, Evict, Move, RelocationPolicy, ReplicaView, Sync, SyncPolicy
from tailrace.pipeline.controller.plugin_faults import answered, listed

_PULLS = "a replica that is behind, once; none that pulls or is pinned, and none with work where versions do not mix"
_MOVE = "two replicas of one version, neither pulling nor pinned, each in one part of the plan"
_EVICT = "trajectories that run on a replica which neither pulls nor is pinned; exact ones if another can continue them"


def pulls(policy: SyncPolicy, cycle: Cycle) -> Sequence[Sync]:
    """The policy's pulls, checked.

    Raises:
        PluginAnswerError: the policy named a replica that must not pull.
    """
    published, mixes = cycle.progress.published, policy.mixes_versions
    may = {
        view.replica
        for view in cycle.replicas
        if view.version != published and not (view.pulling or view.pinned or (view.in_flight and not mixes))
    }
    decisions = listed("sync", policy, "pulls", policy.pulls(cycle), Sync)
    for decision in decisions:
        if decision.replica not in may:
            raise answered("sync", policy, "pulls", decision, _PULLS)
        may.discard(decision.replica)
    return decisions


def relocations(policy: RelocationPolicy, cycle: Cycle) -> Sequence[Move | Evict]:
    """The policy's moves and evictions, checked.

    Raises:
        PluginAnswerError: a move or an eviction could lose trajectories.
    """
    decisions = listed("relocation", policy, "plan", policy.plan(cycle), (Move, Evict))
    free = {view.replica: view for view in cycle.replicas if not (view.pulling or view.pinned)}
    emptied: set[str] = set()
    filled: set[str] = set()
    for decision in decisions:
        if isinstance(decision, Move):
            source, destination = free.get(decision.source), free.get(decision.destination)
            if (
                source is None
                or destination is None
                or source.version != destination.version
                or source.replica in filled | emptied | {destination.replica}
                or destination.replica in emptied
            ):
                raise answered("relocation", policy, "plan", decision, _MOVE)
            emptied.add(source.replica)
            filled.add(destination.replica)
        elif decision.replica in filled | emptied or not _can_leave(decision, free, cycle.replicas):
            raise answered("relocation", policy, "plan", decision, _EVICT)
        else:
            emptied.add(decision.replica)
    return decisions


def _can_leave(eviction: Evict, free: dict[str, ReplicaView], replicas: Sequence[ReplicaView]) -> bool:
    view = free.get(eviction.replica)
    if view is None or not set(eviction.trajectories) <= set(view.trajectories):
        return False
    others = {other.version for other in replicas if other is not view and not other.pulling}
    return all(
        running.version in others for name in eviction.trajectories if (running := view.trajectories[name]).exact
    )
