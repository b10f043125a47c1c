"""Contract suites for routing, sync and relocation policies."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence

from tailrace.contracts import (
    Cycle,
    Evict,
    Move,
    Placement,
    RelocationPolicy,
    ReplicaView,
    RoutingPolicy,
    SyncPolicy,
    check_policy,
)
from tailrace.contracts.testing import check_reason
from tailrace.repack.testing.cycles import random_cycle, shuffled


def check_routing_policy(policy: RoutingPolicy, *, seed: int = 0, cases: int = 300) -> int:
    """Check a routing policy against the rules of `RoutingPolicy.route`; its answer must depend on the cycle alone.

    Args:
        policy: the policy.
        seed: the first case's seed; later cases count up.
        cases: number of cases.

    Returns:
        Placements over all cases. A caller can check that the suite was not idle.

    Raises:
        AssertionError: the policy breaks the contract; the message names the seed.
    """
    check_policy("routing", policy)
    placed = 0
    for case in range(seed, seed + cases):
        random_numbers = random.Random(case)
        cycle = random_cycle(random_numbers, routing=policy)
        before = cycle.admits.fork()
        placements = list(policy.route(cycle))
        assert cycle.admits == before, f"seed {case}: the cycle's own admission was changed, expected a fork to be"
        _check_placements(cycle, placements, f"seed {case}")
        assert list(policy.route(cycle)) == placements, f"seed {case}: the plan is not deterministic"
        assert list(policy.route(shuffled(cycle, random_numbers))) == placements, (
            f"seed {case}: the plan depends on the order of the replicas"
        )
        placed += len(placements)
    return placed


def _check_placements(cycle: Cycle, placements: Sequence[Placement], where: str) -> None:
    replicas = {view.replica: view for view in cycle.replicas}
    pool = {name: view for queue in cycle.pool.values() for name, view in queue.items()}
    names = [placement.trajectory for placement in placements]
    assert len(set(names)) == len(names), f"{where}: a trajectory is placed twice: {names}"
    admits, started = cycle.admits.fork(), dict[int, int]()
    for placement in placements:
        what = f"{where}: {placement.trajectory} on {placement.replica}"
        check_reason(placement.reason, what)
        view = pool.get(placement.trajectory)
        assert view is not None, f"{what}: the trajectory is not in the pool"
        replica = replicas.get(placement.replica)
        assert replica is not None, f"{what}: not a replica of the cycle"
        assert replica.version is not None, f"{what}: the replica serves no version"
        assert not replica.pulling, f"{what}: the replica pulls weights"
        version = started.get(view.group) if view.version is None else view.version
        if version is None:
            assert replica.open, f"{what}: the group has not started and the replica is not open"
            assert admits.allows(replica.version), f"{what}: admission does not allow version {replica.version}"
            admits.take(view.group, replica.version)
            started[view.group] = replica.version
        elif view.exact:
            assert replica.version == version, f"{what}: found version {replica.version}, expected exactly {version}"
        else:
            assert replica.version >= version, f"{what}: found version {replica.version}, expected {version} or newer"


def check_sync_policy(
    policy: SyncPolicy, *, routing: RoutingPolicy | None = None, seed: int = 0, cases: int = 300
) -> int:
    """Check a sync policy against the rules of `SyncPolicy`: only replicas that are behind and free to pull do so.

    Args:
        policy: the policy.
        routing: the routing policy of the cycles; the least loaded replica if None.
        seed: the first case's seed; later cases count up.
        cases: number of cases.

    Returns:
        Pulls over all cases. A caller can check that the suite was not idle.

    Raises:
        AssertionError: the policy breaks the contract; the message names the seed.
    """
    check_policy("sync", policy)
    pulls = 0
    for case in range(seed, seed + cases):
        random_numbers = random.Random(case)
        cycle = random_cycle(random_numbers, routing=routing)
        if random_numbers.random() < 0.1:
            cycle = dataclasses.replace(cycle, progress=dataclasses.replace(cycle.progress, published=-1))
        if random_numbers.random() < 0.2:
            cycle = dataclasses.replace(cycle, replicas=[_idle(view) for view in cycle.replicas])
        before = cycle.admits.fork()
        decided = list(policy.pulls(cycle))
        syncs = [sync.replica for sync in decided]
        assert cycle.admits == before, f"seed {case}: the cycle's own admission was changed, expected a fork to be"
        assert len(set(syncs)) == len(syncs), f"seed {case}: a replica pulls twice: {syncs}"
        replicas = {view.replica: view for view in cycle.replicas}
        for sync in decided:
            what = f"seed {case}: {sync.replica} pulls"
            check_reason(sync.reason, what)
            view = replicas.get(sync.replica)
            assert view is not None, f"{what}: not a replica of the cycle"
            assert not view.pulling, f"{what} while it pulls"
            assert not view.pinned, f"{what} while it is pinned"
            at = -1 if view.version is None else view.version
            assert at < cycle.progress.published, f"{what} at version {at}, published is {cycle.progress.published}"
            assert policy.mixes_versions or not view.in_flight, f"{what} with {view.in_flight} trajectories in flight"
        assert list(policy.pulls(cycle)) == decided, f"seed {case}: the pulls are not deterministic"
        again = {sync.replica for sync in policy.pulls(shuffled(cycle, random_numbers))}
        assert again == set(syncs), f"seed {case}: the pulls depend on the order of the replicas"
        for view in cycle.replicas:
            answer = policy.accepts(view, cycle.progress)
            assert policy.accepts(view, cycle.progress) == answer, f"seed {case}: accepts is not deterministic"
        pulls += len(syncs)
    return pulls


def _idle(view: ReplicaView) -> ReplicaView:
    return dataclasses.replace(view, in_flight=0, in_environment=0, running=0, waiting=0, pinned=False, trajectories={})


def check_relocation_policy(policy: RelocationPolicy, *, kv_limit: float = 1.0, seed: int = 0, cases: int = 300) -> int:
    """Check a relocation policy against the rules of `RelocationPolicy.plan`: nothing is lost, overfilled or moved twice.

    Args:
        policy: the policy.
        kv_limit: share of a destination's KV cache that a plan may fill.
        seed: the first case's seed; later cases count up.
        cases: number of cases.

    Returns:
        Moves and evictions planned over all cases. A caller can check that the suite was not idle.

    Raises:
        AssertionError: the policy breaks the contract; the message names the seed.
    """
    check_policy("relocation", policy)
    planned = 0
    for case in range(seed, seed + cases):
        random_numbers = random.Random(case)
        cycle = random_cycle(random_numbers, replicas=24)
        plan = list(policy.plan(cycle))
        moves = [(step.source, step.destination) for step in plan if isinstance(step, Move)]
        evictions = [step for step in plan if isinstance(step, Evict)]
        _check_moves(cycle.replicas, moves, kv_limit, f"seed {case}")
        _check_evictions(cycle.replicas, evictions, {name for pair in moves for name in pair}, f"seed {case}")
        again = policy.plan(shuffled(cycle, random_numbers))
        assert set(again) == set(plan), f"seed {case}: the plan depends on the order of the replicas"
        planned += len(plan)
    for now_s in (0.0, 1.0, 1e9):
        assert policy.due(now_s, 0.0, False) == policy.due(now_s, 0.0, False), "due is not deterministic"
    return planned


def _check_moves(views: Sequence[ReplicaView], moves: Sequence[tuple[str, str]], kv_limit: float, where: str) -> None:
    by_name = {view.replica: view for view in views}
    sources = [source for source, _ in moves]
    destinations = {destination for _, destination in moves}
    assert len(set(sources)) == len(sources), f"{where}: a replica is released twice: {sources}"
    unknown = (destinations | set(sources)) - set(by_name)
    assert not unknown, f"{where}: found moves of {sorted(unknown)}, which are no replicas of the cycle"
    both = destinations & set(sources)
    assert not both, (
        f"{where}: {sorted(both)} are both source and destination, so the trajectories moved there are lost"
    )
    kv = {name: by_name[name].kv for name in destinations}
    requests = {name: by_name[name].in_flight for name in destinations}
    for source, destination in moves:
        one, other = by_name[source], by_name[destination]
        assert one.version is not None, f"{where}: {source} holds no version"
        assert one.version == other.version, f"{where}: {source} and {destination} serve different versions"
        for view in (one, other):
            assert not view.pulling, f"{where}: {view.replica} pulls weights"
            assert not view.pinned, f"{where}: {view.replica} is pinned"
        assert one.in_flight > 0, f"{where}: {source} has nothing to move"
        kv[destination] += one.kv
        requests[destination] += one.in_flight
    for name in destinations:
        assert kv[name] <= kv_limit + 1e-9, f"{where}: {name} is planned to {kv[name]} of its KV cache"
        assert requests[name] <= by_name[name].capacity, f"{where}: {name} is planned to {requests[name]} trajectories"


def _check_evictions(views: Sequence[ReplicaView], evictions: Sequence[Evict], moved: set[str], where: str) -> None:
    by_name = {view.replica: view for view in views}
    evicted: set[str] = set()
    for eviction in evictions:
        what = f"{where}: {eviction.replica} evicts"
        assert eviction.replica in by_name, f"{what}: not a replica of the cycle"
        view = by_name[eviction.replica]
        check_reason(eviction.reason, what)
        assert eviction.replica not in moved, f"{what} and moves in the same plan"
        assert not view.pinned, f"{what} while it is pinned"
        assert not view.pulling, f"{what} while it pulls weights"
        assert eviction.trajectories, f"{what} nothing"
        for name in eviction.trajectories:
            assert name in view.trajectories, f"{what} {name}, which it does not hold"
            assert name not in evicted, f"{what} {name} twice"
            evicted.add(name)
            if view.trajectories[name].exact:
                others = {other.version for other in views if other.replica != view.replica and not other.pulling}
                wanted = view.trajectories[name].version
                assert wanted in others, f"{what} {name}, which no other replica at version {wanted} can continue"
