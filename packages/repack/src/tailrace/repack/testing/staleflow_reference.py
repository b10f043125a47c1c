"""StaleFlow's Algorithms 1 to 5 and equations 2 to 4, from the paper's text, except where the policies' modules say otherwise.

Tests and the benchmark compare the policies with them. Nothing here calls a function of the code under test: only the records
of `tailrace.contracts` and the policies' options are read. Slow: each step asks every instance, and works on copies.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass

from tailrace.contracts import Cycle, Evict, Placement, Reason, ReplicaView, Sync, TrajectoryView, Why
from tailrace.repack.marginal_throughput import MarginalThroughput
from tailrace.repack.migration import Migration

Trajectories = dict[int | None, list[TrajectoryView]]
"""The trajectory server: what waits, by V_traj."""


@dataclass(slots=True)
class _Instance:
    """The snapshot S[i] of one instance: its version, its cache in tokens, and its trajectories."""

    name: str
    inst_version: int
    kv_cache: int
    run: int
    wait: int
    trajs: list[TrajectoryView]
    budget: float
    most: int
    starts_groups: bool
    away: int


def _throughput(policy: MarginalThroughput | Migration, kv_cache: float, run: int) -> float:
    """Equation 2."""
    if run == 0:
        return 0.0
    return run / (policy.k1 * kv_cache + max(policy.k2, policy.k3 * run) + policy.k4)


def _snapshot(cycle: Cycle) -> list[_Instance]:
    """S: the instances whose snapshots are validated, that serve a version and are free to change; by name."""
    found = []
    for view in cycle.replicas:
        if view.version is None or not view.fresh or view.pulling or view.pinned:
            continue
        held = list(view.trajectories.values())
        tokens = sum(each.tokens for each in held)
        found.append(
            _Instance(
                name=view.replica,
                inst_version=view.version,
                kv_cache=round(view.kv_capacity_tokens * view.kv) if view.kv_capacity_tokens > 0 else tokens,
                run=view.running,
                wait=view.waiting,
                trajs=held,
                budget=view.kv_capacity_tokens if view.kv_capacity_tokens > 0 else math.inf,
                most=view.capacity if view.max_running == 0 else min(view.max_running, view.capacity),
                starts_groups=view.open,
                away=view.in_environment,
            )
        )
    return sorted(found, key=lambda instance: instance.name)


def _server(cycle: Cycle) -> Trajectories:
    return {version: list(queue.values()) for version, queue in cycle.pool.items()}


def _length(policy: MarginalThroughput, trajectory: TrajectoryView, snapshot: Sequence[_Instance]) -> int:
    """Equation 3's l: the prompt and the response so far; of an initial trajectory, the prompt (footnote 1)."""
    if trajectory.tokens - trajectory.prompt_tokens > 0:
        return trajectory.tokens
    prompt = trajectory.prompt_tokens if trajectory.prompt_tokens else policy.prompt_tokens
    response = trajectory.predicted if trajectory.left is None else trajectory.left
    if response is None or not policy.predicted:
        return prompt
    smallest = min((instance.budget for instance in snapshot), default=math.inf)
    return int(max(prompt, min(prompt + math.ceil(response), smallest)))


def _check_routable(instance: _Instance, trajectory: TrajectoryView, v_traj: int | None, verified: bool) -> bool:
    """Algorithm 2. `verified` is what the staleness manager says of the instance's version for an initial trajectory."""
    if v_traj is None:
        return verified and instance.starts_groups
    if trajectory.exact:
        return instance.inst_version == v_traj
    return instance.inst_version >= v_traj


def _marginal_gain(policy: MarginalThroughput, instance: _Instance, length: int) -> float:
    """Equation 3."""
    runs = instance.wait == 0 and instance.run < instance.most and instance.kv_cache + length <= instance.budget
    if not runs:
        return 0.0
    after = _throughput(policy, instance.kv_cache + length, instance.run + 1)
    return after - _throughput(policy, instance.kv_cache, instance.run)


def _routing_strategy(
    policy: MarginalThroughput, snapshot: Sequence[_Instance], server: Trajectories, cycle: Cycle
) -> list[tuple[TrajectoryView, str, float, float]]:
    """Algorithm 3, on a copy of S: each routed trajectory, its instance, its gain and the least that was enough."""
    instances, manager = [dataclasses.replace(each) for each in snapshot], cycle.admits.fork()
    versions_of_groups: dict[int, int] = {}
    routing: list[tuple[TrajectoryView, str, float, float]] = []
    for version in sorted(server, key=lambda each: (each is None, -1 if each is None else each)):  # the MLQ
        for trajectory in server[version]:
            v_traj = version if version is not None else versions_of_groups.get(trajectory.group)
            candidates = [
                each
                for each in instances
                if _check_routable(each, trajectory, v_traj, manager.allows(each.inst_version))
            ]
            if not candidates and v_traj is not None:
                continue  # in the paper, somebody always serves
            length = _length(policy, trajectory, instances)
            ideal = 1 / (policy.k1 * length + max(policy.k2, policy.k3) + policy.k4)
            enough = policy.mu * ideal
            selected, gain = None, -math.inf
            for at in sorted({each.inst_version for each in candidates}):
                best, gain = None, -math.inf
                for each in [one for one in candidates if one.inst_version == at]:
                    own = _marginal_gain(policy, each, length)
                    if own > gain:
                        best, gain = each, own
                if gain >= enough:
                    selected = best
                    break
            if selected is None:
                return routing
            routing.append((trajectory, selected.name, gain, enough))
            selected.run += 1
            selected.kv_cache += length
            if v_traj is None:
                manager.take(trajectory.group, selected.inst_version)
                versions_of_groups[trajectory.group] = selected.inst_version
    return routing


def route_slowly(policy: MarginalThroughput, cycle: Cycle) -> list[Placement]:
    """Algorithm 3."""
    routing = _routing_strategy(policy, _snapshot(cycle), _server(cycle), cycle)
    return [
        Placement(trajectory.trajectory, name, Reason(Why.CHOSEN, numbers={"gain": gain, "least": enough}))
        for trajectory, name, gain, enough in routing
    ]


def sync_slowly(cycle: Cycle) -> list[Sync]:
    """Algorithm 4 for any routing policy, each candidate on a copy of S after lines 4 to 8 of Algorithm 1."""
    ps_version, snapshot, server = cycle.progress.published, _snapshot(cycle), _server(cycle)
    sync = [
        Sync(view.replica, Reason(Why.BEHIND, numbers={"version": ps_version}))
        for view in cycle.replicas
        if view.version is None and ps_version >= 0 and not view.pulling and not view.pinned
    ]
    for view in cycle.replicas:
        instance = next((each for each in snapshot if each.name == view.replica), None)
        if instance is None or not ps_version > instance.inst_version:
            continue
        verified = cycle.admits.allows(instance.inst_version)
        if any(_check_routable(instance, each, version, verified) for version in server for each in server[version]):
            continue
        own = {each.trajectory for each in instance.trajs}
        if any(
            name == view.replica and each not in own for each, name in _tentative(cycle, view, snapshot, ps_version)
        ):
            sync.append(Sync(view.replica, Reason(Why.USEFUL, numbers={"version": ps_version})))
    return sync


def _tentative(
    cycle: Cycle, view: ReplicaView, snapshot: Sequence[_Instance], ps_version: int
) -> list[tuple[str, str]]:
    """What routing would place, and where, once one instance has given back its trajectories and pulled."""
    server = _server(cycle)
    for each in view.trajectories.values():
        server.setdefault(each.version, []).append(each)
    if isinstance(cycle.routing, MarginalThroughput):
        temporary = [dataclasses.replace(each) for each in snapshot]
        (pulled,) = [each for each in temporary if each.name == view.replica]
        pulled.inst_version, pulled.kv_cache, pulled.run, pulled.wait, pulled.trajs = ps_version, 0, 0, 0, []
        return [
            (each.trajectory, name) for each, name, _, _ in _routing_strategy(cycle.routing, temporary, server, cycle)
        ]
    alone = dataclasses.replace(
        view,
        version=ps_version,
        trajectories={},
        in_flight=view.in_environment,
        running=0,
        waiting=0,
        kv=0.0,
        kv_peak=0.0,
    )
    order = sorted(server, key=lambda each: (each is None, -1 if each is None else each))
    then = dataclasses.replace(
        cycle,
        replicas=[alone if one is view else one for one in cycle.replicas],
        pool={version: {each.trajectory: each for each in server[version]} for version in order},
    )
    return [(placement.trajectory, placement.replica) for placement in cycle.routing.route(then)]


def migrate_slowly(policy: Migration, cycle: Cycle) -> list[Evict]:
    """Algorithm 5."""
    snapshot = _snapshot(cycle)

    def elsewhere(instance: _Instance, trajectory: TrajectoryView) -> bool:
        others = [each for each in snapshot if each.name != instance.name]
        return any(_check_routable(each, trajectory, trajectory.version, True) for each in others)

    migration: list[tuple[str, list[str], Reason]] = []
    for instance in snapshot:
        excess = instance.wait - policy.phi_wait
        last_first = [
            each.trajectory for each in reversed(instance.trajs) if not each.exact or elsewhere(instance, each)
        ]
        if excess > 0 and last_first:
            reason = Reason(Why.WAITING_TOO_LONG, numbers={"waiting": instance.wait, "limit": policy.phi_wait})
            migration.append((instance.name, last_first[:excess], reason))
    if len(snapshot) >= 2:
        throughputs = [_owed(policy, each) for each in snapshot]
        high, low = max(throughputs), min(throughputs)
        fastest, slowest = snapshot[throughputs.index(high)], snapshot[throughputs.index(low)]
        if low > 0:
            apart = high / low > policy.phi_throughput
        else:
            apart = _worth_sharing(policy, fastest) and not _anything_routable(snapshot, cycle)
        handled = [names for name, names, _ in migration if name == fastest.name]
        rest = [
            each.trajectory
            for each in fastest.trajs
            if elsewhere(fastest, each) and not any(each.trajectory in names for names in handled)
        ]
        if apart and rest:
            reason = Reason(Why.LOW_THROUGHPUT, slowest.name, {"here": high, "there": low})
            migration = [entry for entry in migration if entry[0] != fastest.name]
            migration.append((fastest.name, [*(handled[0] if handled else ()), *rest], reason))
    return [Evict(name, tuple(names), reason) for name, names, reason in migration]


def _owed(policy: Migration, instance: _Instance) -> float:
    """Throughput of an instance once what its environments have comes back, as far as all of it runs."""
    if not instance.run:
        return _throughput(policy, 0, min(instance.away, max(0, instance.most)))
    all_run = min(instance.run + instance.away, max(instance.run, instance.most))
    return _throughput(policy, round(instance.kv_cache / instance.run * all_run), all_run)


def _worth_sharing(policy: Migration, instance: _Instance) -> bool:
    """Whether the two halves of what an instance runs would be faster apart."""
    if instance.run == 0 or len(instance.trajs) < 2:
        return False
    fewer = instance.run // 2
    more = instance.run - fewer
    apart = sum(_throughput(policy, instance.kv_cache * share / instance.run, share) for share in (fewer, more))
    return apart > _throughput(policy, instance.kv_cache, instance.run) * (1 + 1e-9)


def _anything_routable(snapshot: Sequence[_Instance], cycle: Cycle) -> bool:
    server = _server(cycle)
    return any(
        _check_routable(instance, each, version, cycle.admits.allows(instance.inst_version))
        for instance in snapshot
        for version in server
        for each in server[version]
    )
