"""Synchronisation when it helps (StaleFlow, Algorithm 4): pull what can be given nothing now and would be given work then.

A replica is a candidate if it is behind and nothing in the pool may run at its version, whatever that would gain. It pulls if
the routing policy would give it something of the pool once it had: the cycle is tried with the replica at the published
version and empty, and with its own trajectories back in the pool, as a real pull leaves it. What must come to it is
somebody else's trajectory: its own alone are no reason to interrupt them.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

from tailrace.contracts import Cycle, Pool, Progress, Reason, ReplicaView, Sync, TrajectoryView, Why
from tailrace.repack.gains import GainIndex, planned_with
from tailrace.repack.interrupting import is_behind
from tailrace.repack.marginal import ideal_gain
from tailrace.repack.routable import may_run_at
from tailrace.repack.routing import queues
from tailrace.repack.waterfall import MarginalThroughput, Queues


@dataclass(frozen=True, slots=True)
class WhenUseful:
    """A replica pulls when that lets it do something that it cannot do now. Plugin ``when-useful``.

    Works with any routing policy; with `marginal-throughput` the candidates share their work.
    """

    @property
    def mixes_versions(self) -> bool:
        """What is interrupted goes on under newer weights."""
        return True

    def pulls(self, cycle: Cycle) -> Sequence[Sync]:
        """Algorithm 4. A replica that has no version yet always pulls."""
        published = cycle.progress.published
        behind = [
            view for view in cycle.replicas if is_behind(view, published) and not view.pulling and not view.pinned
        ]
        version = {"version": published}
        syncs = [Sync(view.replica, Reason(Why.BEHIND, "", version)) for view in behind if view.version is None]
        candidates = [view for view in behind if planned_with(view) and not _may_be_given_work(view, cycle)]
        if candidates and _may_come(published, cycle):
            useful = (
                _tried_at_once(cycle, candidates, cycle.routing)
                if isinstance(cycle.routing, MarginalThroughput)
                else _tried_one_by_one(cycle, candidates)
            )
            syncs += [Sync(replica, Reason(Why.USEFUL, "", version)) for replica in useful]
        return syncs

    def accepts(self, replica: ReplicaView, progress: Progress) -> bool:  # noqa: ARG002 - the protocol's arguments
        """Always: admission and routing say what it gets."""
        return True


def _may_be_given_work(view: ReplicaView, cycle: Cycle) -> bool:
    assert view.version is not None
    return may_run_at(view.version, cycle, opened=view.open)


def _may_come(published: int, cycle: Cycle) -> bool:
    """Whether anything in the pool might be given to a replica that has pulled; a cheap way to a frequent no."""
    if may_run_at(published, cycle, opened=True):
        return True
    # The rest of a group may go there once its first trajectory has started the group elsewhere.
    versions = {view.version for view in cycle.replicas if view.version is not None}
    return bool(cycle.pool.get(None)) and any(cycle.admits.allows(version) for version in versions)


def tried(cycle: Cycle, view: ReplicaView) -> Cycle:
    """The cycle as it would be had a replica pulled the published version."""
    pulled = dataclasses.replace(
        view, version=cycle.progress.published, in_flight=0, running=0, waiting=0, kv=0.0, kv_peak=0.0, trajectories={}
    )
    pool: dict[int | None, dict[str, TrajectoryView]] = {version: dict(queue) for version, queue in cycle.pool.items()}
    for trajectory in view.trajectories.values():
        pool.setdefault(trajectory.version, {})[trajectory.trajectory] = trajectory
    ordered: Pool = {version: pool[version] for version in sorted(pool, key=_age)}
    replicas = [pulled if other.replica == view.replica else other for other in cycle.replicas]
    return dataclasses.replace(cycle, replicas=replicas, pool=ordered)


def _age(version: int | None) -> tuple[bool, int]:
    return version is None, version or 0


def _tried_one_by_one(cycle: Cycle, candidates: Sequence[ReplicaView]) -> Iterable[str]:
    for view in candidates:
        for placement in cycle.routing.route(tried(cycle, view)):
            if placement.replica == view.replica and placement.trajectory not in view.trajectories:
                yield view.replica
                break


def _tried_at_once(cycle: Cycle, candidates: Sequence[ReplicaView], routing: MarginalThroughput) -> Iterable[str]:
    """The same on one index: each candidate changes it, is tried until something comes to it, and is undone."""
    index = routing.index(cycle)
    places = {view.replica: place for place, view in enumerate(index.views)}
    pool = {version: queue.values() for version, queue in queues(cycle)}
    oldest = min((version for version in cycle.pool if version is not None), default=cycle.progress.published + 1)
    heads = Heads(routing, index)
    for view in candidates:
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
            if chosen == place and trajectory.trajectory not in view.trajectories:
                yield view.replica
                break
        index.rollback()


class Heads:
    """Says of most candidates, without trying, that nothing would come to them.

    A candidate's own trajectories are the oldest in the pool once it has pulled. Those by which no other replica could ever
    gain enough go back to the candidate and fill it up. The first by which it does not gain enough either blocks the pool, and
    then nothing that stands behind it is placed anywhere.
    """

    def __init__(self, routing: MarginalThroughput, index: GainIndex) -> None:
        self._routing = routing
        self._index = index
        self._versions = index.versions()
        self._elsewhere: dict[tuple[int, int], bool] = {}
        self._least: dict[int, float] = {}

    def stopped(self, own: Iterable[TrajectoryView], view: ReplicaView) -> bool:
        """Whether these, in this order, are certain to be blocked at one; False if that is not known."""
        index, running, kv, budget = self._index, 0, 0, view.kv_capacity_tokens or math.inf
        for trajectory in own:
            length, version = trajectory.tokens or self._routing.prompt_tokens, trajectory.version
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
            if (
                running >= view.capacity
                or kv + length > budget
                or index.bound(running, kv, length) < self._least[length]
            ):
                return True
            running, kv = running + 1, kv + length
        return False
