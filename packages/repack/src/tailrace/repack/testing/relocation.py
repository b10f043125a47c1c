"""Contract suite for relocation policies."""

from __future__ import annotations

import random
from collections.abc import Sequence

from tailrace.contracts import Evict, Move, RelocationPolicy, ReplicaView
from tailrace.contracts.testing import check_reason
from tailrace.repack.testing.cycles import random_cycle, shuffled


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
