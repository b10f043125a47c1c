"""StaleFlow's Algorithms 2 to 5 as printed, except where the policies' modules say otherwise.

Tests and the benchmark compare the policies with them. Slow: each step asks every replica and works on copies.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tailrace.contracts import Cycle, Evict, Placement, Reason, ReplicaView, Sync, TrajectoryView, Why
from tailrace.repack.gains import kv_tokens, planned_with
from tailrace.repack.marginal_gain import ideal_gain, marginal_gain
from tailrace.repack.marginal_throughput import MarginalThroughput
from tailrace.repack.migration import Migration
from tailrace.repack.sync.plain import may_pull
from tailrace.repack.sync.when_useful import tried
from tailrace.repack.throughput import ThroughputModel


@dataclass(slots=True)
class _Instance:
    """The snapshot S[i] of one instance."""

    view: ReplicaView
    version: int
    kv: int
    running: int

    def gain(self, model: ThroughputModel, length: int) -> float:
        return marginal_gain(
            model,
            kv_tokens=self.kv,
            running=self.running,
            waiting=self.view.waiting,
            length=length,
            kv_budget_tokens=self.view.kv_capacity_tokens,
            capacity=self.view.places,
        )


def _instances(cycle: Cycle) -> list[_Instance]:
    return [
        _Instance(view, view.version, kv_tokens(view), view.running)
        for view in sorted(cycle.replicas, key=lambda view: view.replica)
        if planned_with(view) and view.version is not None
    ]


def _routable(view: ReplicaView, version: int, trajectory: TrajectoryView, oldest: int | None, allowed: bool) -> bool:
    """Algorithm 2, as a predicate."""
    if oldest is None:
        return view.open and allowed
    return version == oldest if trajectory.exact else version >= oldest


def _assumed(policy: MarginalThroughput, trajectory: TrajectoryView, instances: Sequence[_Instance]) -> int:
    """Tokens with which one that has none is planned."""
    response = trajectory.left or trajectory.predicted
    if not policy.predicted or response is None:
        return policy.prompt_tokens
    rooms = [each.view.kv_capacity_tokens for each in instances if each.view.kv_capacity_tokens]
    return max(policy.prompt_tokens, min([policy.prompt_tokens + math.ceil(response), *rooms]))


def route_slowly(policy: MarginalThroughput, cycle: Cycle) -> list[Placement]:
    """Algorithm 3."""
    model, instances, admits = policy.model, _instances(cycle), cycle.admits.fork()
    started: dict[int, int] = {}
    placements: list[Placement] = []
    for version in sorted(cycle.pool, key=lambda version: (version is None, version or 0)):
        for trajectory in cycle.pool[version].values():
            length = trajectory.tokens or _assumed(policy, trajectory, instances)
            oldest = started.get(trajectory.group) if version is None else version
            candidates = [
                instance
                for instance in instances
                if _routable(instance.view, instance.version, trajectory, oldest, admits.allows(instance.version))
            ]
            if not candidates and oldest is not None:
                continue  # the paper's instances all serve
            least = policy.mu * ideal_gain(model, length)
            selected: _Instance | None = None
            gain = 0.0
            for at in sorted({instance.version for instance in candidates}):
                gain, best = max(
                    (
                        (instance.gain(model, length), -place)
                        for place, instance in enumerate(candidates)
                        if instance.version == at
                    )
                )
                if gain >= least:
                    selected = candidates[-best]
                    break
            if selected is None:
                return placements
            reason = Reason(Why.CHOSEN, numbers={"gain": gain, "least": least})
            placements.append(Placement(trajectory.trajectory, selected.view.replica, reason))
            selected.kv += length
            selected.running += 1
            if oldest is None:
                admits.take(trajectory.group, selected.version)
                started[trajectory.group] = selected.version
    return placements


def sync_slowly(cycle: Cycle) -> list[Sync]:
    """Algorithm 4 for any routing policy, each candidate on a copy of the cycle."""
    published = cycle.progress.published
    behind = may_pull(cycle)
    version = {"version": published}
    syncs = [Sync(view.replica, Reason(Why.BEHIND, numbers=version)) for view in behind if view.version is None]
    for view in behind:
        if view.version is None or not view.fresh:
            continue
        allowed = cycle.admits.allows(view.version)
        if any(
            _routable(view, view.version, trajectory, trajectory.version, allowed)
            for queue in cycle.pool.values()
            for trajectory in queue.values()
        ):
            continue
        routing = cycle.routing
        then = tried(cycle, view)
        placements = route_slowly(routing, then) if isinstance(routing, MarginalThroughput) else routing.route(then)
        if any(
            placement.replica == view.replica and placement.trajectory not in view.trajectories
            for placement in placements
        ):
            syncs.append(Sync(view.replica, Reason(Why.USEFUL, numbers=version)))
    return syncs


def migrate_slowly(policy: Migration, cycle: Cycle) -> list[Evict]:
    """Algorithm 5."""
    instances = _instances(cycle)

    def others_take(instance: _Instance, trajectory: TrajectoryView) -> bool:
        return any(
            _routable(other.view, other.version, trajectory, trajectory.version, allowed=True)
            for other in instances
            if other is not instance
        )

    migration: dict[str, list[str]] = {}
    why: dict[str, Reason] = {}
    for instance in instances:
        view = instance.view
        excess = view.waiting - policy.phi_wait
        if excess > 0:
            tail = [name for name, each in view.trajectories.items() if not each.exact or others_take(instance, each)]
            if tail:
                migration[view.replica] = tail[::-1][:excess]
                numbers = {"waiting": view.waiting, "limit": policy.phi_wait}
                why[view.replica] = Reason(Why.WAITING_TOO_LONG, numbers=numbers)
    rates = {instance.view.replica: _owed(policy, instance) for instance in instances}
    if len(rates) > 1:
        ahead = max(instances, key=lambda instance: rates[instance.view.replica])
        behind = min(instances, key=lambda instance: rates[instance.view.replica])
        high, low = rates[ahead.view.replica], rates[behind.view.replica]
        if low > 0:
            trigger = high / low > policy.phi_throughput
        else:
            routable = any(
                _routable(each.view, each.version, trajectory, trajectory.version, cycle.admits.allows(each.version))
                for each in instances
                for queue in cycle.pool.values()
                for trajectory in queue.values()
            )
            several = ahead.running > 0 and len(ahead.view.trajectories) > 1
            trigger = (
                several
                and not routable
                and _split(policy, ahead) > policy.model.throughput(ahead.kv, ahead.running) * (1 + 1e-9)
            )
        name = ahead.view.replica
        rest = [
            each
            for each, trajectory in ahead.view.trajectories.items()
            if each not in migration.get(name, ()) and others_take(ahead, trajectory)
        ]
        if trigger and rest:
            # The fastest replica comes last, once, together with its evictions of case 1.
            migration[name] = migration.pop(name, []) + rest
            why[name] = Reason(Why.LOW_THROUGHPUT, behind.view.replica, {"here": high, "there": low})
    return [Evict(name, tuple(found), why[name]) for name, found in migration.items()]


def _owed(policy: Migration, instance: _Instance) -> float:
    """Throughput of an instance once what its environments have comes back, as far as all of it runs."""
    owed = min(instance.running + instance.view.in_environment, max(instance.running, instance.view.places))
    mean = instance.kv / instance.running if instance.running else 0.0
    return policy.model.throughput(round(mean * owed), owed)


def _split(policy: Migration, instance: _Instance) -> float:
    """Throughput of two replicas that share an instance's trajectories as evenly as they can."""
    half = instance.running // 2
    mean = instance.kv / instance.running
    return sum(policy.model.throughput(mean * count, count) for count in (half, instance.running - half))
