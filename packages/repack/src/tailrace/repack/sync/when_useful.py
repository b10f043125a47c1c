"""Synchronisation when it helps (StaleFlow, Algorithm 4): a replica pulls if only newer weights let it be given work.

A replica is a candidate if it is behind and no trajectory of the pool may run at its version, regardless of the gain. The
policy then tries the cycle that a pull would lead to: the replica is empty and serves the published version, and its own
trajectories are back in the pool. The replica pulls if routing then gives it at least one trajectory that was not its own.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Annotated

from tailrace.contracts import (
    Cycle,
    Pool,
    Progress,
    Reason,
    ReplicaView,
    Sync,
    SyncPolicy,
    TrajectoryView,
    Tried,
    Why,
)
from tailrace.repack.errors import LoadError
from tailrace.repack.gains import GainIndex, ideal_gain, planned_with
from tailrace.repack.marginal_throughput import MarginalThroughput, Queues
from tailrace.repack.routing import may_run_at, queues
from tailrace.repack.sync.plain import may_pull


@dataclass(frozen=True, slots=True)
class WhenUseful(SyncPolicy):
    """A replica pulls when it can be given work only with newer weights. Plugin ``when-useful``.

    Works with any routing policy; with `marginal-throughput` all candidates are tried on one index, which is faster.

    Args:
        trials: most placements that one cycle tries, so that a cycle stays short on a large fleet. The remaining candidates
            come first in a later cycle.

    Raises:
        LoadError: a value is out of its range.
    """

    trials: Annotated[int, Tried((1, 10, 8192, 8192))] = 8192

    def __post_init__(self) -> None:
        if self.trials < 1:
            raise LoadError(f"found trials={self.trials!r}, expected at least 1")

    @property
    def mixes_versions(self) -> bool:
        """An interrupted trajectory continues under newer weights."""
        return True

    def pulls(self, cycle: Cycle) -> Sequence[Sync]:
        """Algorithm 4. A replica that has no version yet always pulls."""
        published = cycle.progress.published
        behind = may_pull(cycle)
        version = {"version": published}
        syncs = [Sync(view.replica, Reason(Why.BEHIND, "", version)) for view in behind if view.version is None]
        candidates = [view for view in behind if planned_with(view) and not _may_be_given_work(view, cycle)]
        if candidates and _may_come(published, cycle):
            by_name = sorted(candidates, key=lambda view: view.replica)
            first = cycle.turn % len(by_name)
            in_turn = by_name[first:] + by_name[:first]
            useful = set(
                _tried_at_once(cycle, in_turn, cycle.routing, self.trials)
                if isinstance(cycle.routing, MarginalThroughput)
                else _tried_one_by_one(cycle, in_turn, self.trials)
            )
            why = Reason(Why.USEFUL, "", version)
            syncs += [Sync(view.replica, why) for view in candidates if view.replica in useful]
        return syncs

    def accepts(self, replica: ReplicaView, progress: Progress) -> bool:  # noqa: ARG002 - the protocol's arguments
        """Take whatever admission and routing give."""
        return True


def _may_be_given_work(view: ReplicaView, cycle: Cycle) -> bool:
    assert view.version is not None
    return may_run_at(view.version, cycle, opened=view.open)


def _may_come(published: int, cycle: Cycle) -> bool:
    """Whether the pool might have work for a replica that has pulled. Cheap; the answer is often no."""
    if may_run_at(published, cycle, opened=True):
        return True
    # Other trajectories of a group may go there once the group has started elsewhere.
    versions = {view.version for view in cycle.replicas if view.version is not None}
    return bool(cycle.pool.get(None)) and any(cycle.admits.allows(version) for version in versions)


def tried(cycle: Cycle, view: ReplicaView) -> Cycle:
    """The cycle as it would be if a replica had pulled the published version."""
    pulled = dataclasses.replace(
        view,
        version=cycle.progress.published,
        in_flight=view.in_environment,
        running=0,
        waiting=0,
        kv=0.0,
        kv_peak=0.0,
        trajectories={},
    )
    pool: dict[int | None, dict[str, TrajectoryView]] = {version: dict(queue) for version, queue in cycle.pool.items()}
    for trajectory in view.trajectories.values():
        pool.setdefault(trajectory.version, {})[trajectory.trajectory] = trajectory
    ordered: Pool = {version: pool[version] for version in sorted(pool, key=_age)}
    replicas = [pulled if other.replica == view.replica else other for other in cycle.replicas]

    def others(trajectory: TrajectoryView) -> Mapping[str, int]:
        found = cycle.prefixes(trajectory)  # its own cache goes with its weights
        return {name: tokens for name, tokens in found.items() if name != view.replica}

    return dataclasses.replace(cycle, replicas=replicas, pool=ordered, prefixes=others)


def _age(version: int | None) -> tuple[bool, int]:
    return version is None, version or 0


def _tried_one_by_one(cycle: Cycle, candidates: Sequence[ReplicaView], trials: int) -> Iterable[str]:
    for view in candidates:
        if trials <= 0:
            return
        placements = cycle.routing.route(tried(cycle, view))
        trials -= len(placements)
        for placement in placements:
            if placement.replica == view.replica and placement.trajectory not in view.trajectories:
                yield view.replica
                break


def _tried_at_once(
    cycle: Cycle, candidates: Sequence[ReplicaView], routing: MarginalThroughput, trials: int
) -> Iterable[str]:
    """Try all candidates on one index: change it for a candidate, place until the candidate gets work, and undo."""
    index = routing.index(cycle)
    places = {view.replica: place for place, view in enumerate(index.views)}
    pool = {version: queue.values() for version, queue in queues(cycle)}
    oldest = min((version for version in cycle.pool if version is not None), default=cycle.progress.published + 1)
    heads = BlockedHeads(routing, index)
    for view in candidates:
        if trials <= 0:
            return
        own: dict[int | None, list[TrajectoryView]] = {}
        for trajectory in view.trajectories.values():
            own.setdefault(trajectory.version, []).append(trajectory)
        order = sorted({*pool, *own}, key=_age)
        first = (each for version in order if version is not None and version < oldest for each in own.get(version, ()))
        if heads.stopped(first, view):
            continue
        waiting: Queues = ((version, chain(pool.get(version, ()), own.get(version, ()))) for version in order)
        place = places[view.replica]
        index.mark()
        index.empty(place, cycle.progress.published)
        for trajectory, chosen, _, _ in routing.pour(index, waiting, cycle.admits):
            trials -= 1
            if chosen == place and trajectory.trajectory not in view.trajectories:
                yield view.replica
                break
        index.rollback()


class BlockedHeads:
    """Finds out for most candidates, without a trial, that routing would give them nothing new.

    After a pull, a candidate's own trajectories are the oldest in the pool. Each of them from which no other replica could
    gain enough goes back to the candidate and fills it. The first from which the candidate does not gain enough either blocks
    the pool: routing places nothing behind it.
    """

    def __init__(self, routing: MarginalThroughput, index: GainIndex) -> None:
        self._routing = routing
        self._index = index
        self._length = routing.lengths(index)
        self._versions = index.versions()
        self._elsewhere: dict[tuple[int, int], bool] = {}
        self._least: dict[int, float] = {}

    def stopped(self, own: Iterable[TrajectoryView], view: ReplicaView) -> bool:
        """Whether one of these trajectories, placed in this order, certainly blocks the pool; False if unknown."""
        index, running, kv, budget = self._index, 0, 0, view.kv_capacity_tokens or math.inf
        for trajectory in own:
            length, version = self._length(trajectory), trajectory.version
            elsewhere = self._elsewhere.get((length, version or 0))
            if elsewhere is None:
                least = self._routing.mu * ideal_gain(self._routing.model, length)
                elsewhere = any(
                    index.reachable(each, length, least)
                    for each in self._versions
                    if version is None or each >= version
                )
                self._elsewhere[length, version or 0], self._least[length] = elsewhere, least
            if elsewhere or trajectory.exact:
                continue
            if running >= view.places or kv + length > budget or index.bound(running, kv, length) < self._least[length]:
                return True
            running, kv = running + 1, kv + length
        return False
