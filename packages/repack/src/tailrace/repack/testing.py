"""Contract suites for relocation and routing policies: run them on your own class.

Each case is drawn from a seed that a failure names. Standard library only.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from tailrace.contracts import RelocationPolicy, ReplicaView, RoutingPolicy


def random_views(random_numbers: random.Random, count: int) -> list[ReplicaView]:
    """Replicas in every state: filling up, full, in their long tail, idle, pulling, or with stale load."""
    views = []
    for index in range(count):
        capacity = random_numbers.choice([4, 16, 64])
        peak = random_numbers.choice([0.0, 0.25, 0.5, 0.99, 1.0])
        kv = random_numbers.choice([0.0, 0.01, 0.1, 0.25, 0.5, round(random_numbers.random(), 3)])
        views.append(
            ReplicaView(
                replica=f"replica-{index}",
                version=random_numbers.choice([None, 3, 3, 4, 4, 4]),
                pulling=random_numbers.random() < 0.1,
                in_flight=random_numbers.choice([0, 1, 2, capacity // 2, capacity]),
                capacity=capacity,
                kv=kv,
                kv_before=random_numbers.choice([kv, round(random_numbers.random(), 3)]),
                kv_peak=max(kv, peak),
                waiting=random_numbers.choice([0, 0, 0, 3]),
                fresh=random_numbers.random() < 0.9,
            )
        )
    return views


def check_relocation_policy(policy: RelocationPolicy, *, kv_limit: float = 1.0, seed: int = 0, cases: int = 300) -> int:
    """Hold a relocation policy to its contract: nothing is lost, overfilled or moved twice.

    Args:
        kv_limit: share of the KV cache that a destination may be planned to.
        seed: of the first case; later ones count up.

    Returns:
        Moves planned over all cases, so that a caller can tell that the suite was not idle.

    Raises:
        AssertionError: the policy breaks the contract; the message names the seed.
    """
    moved = 0
    for case in range(seed, seed + cases):
        random_numbers = random.Random(case)
        views = random_views(random_numbers, random_numbers.randrange(0, 24))
        moves = list(policy.plan(views))
        _check_moves(views, [(move.source, move.destination) for move in moves], kv_limit, f"seed {case}")
        shuffled = random_numbers.sample(views, len(views))
        assert set(policy.plan(shuffled)) == set(moves), f"seed {case}: the plan depends on the order of the replicas"
        moved += len(moves)
    for now_s in (0.0, 1.0, 1e9):
        assert policy.due(now_s, 0.0, False) == policy.due(now_s, 0.0, False), "due is not deterministic"
    return moved


def _check_moves(views: Sequence[ReplicaView], moves: Sequence[tuple[str, str]], kv_limit: float, where: str) -> None:
    by_name = {view.replica: view for view in views}
    sources = [source for source, _ in moves]
    destinations = {destination for _, destination in moves}
    assert len(set(sources)) == len(sources), f"{where}: a replica is released twice: {sources}"
    both = destinations & set(sources)
    assert not both, f"{where}: {sorted(both)} are both source and destination, so what moves there is lost"
    kv = {name: by_name[name].kv for name in destinations}
    requests = {name: by_name[name].in_flight for name in destinations}
    for source, destination in moves:
        one, other = by_name[source], by_name[destination]
        assert one.version is not None, f"{where}: {source} holds no version"
        assert one.version == other.version, f"{where}: {source} and {destination} serve different versions"
        assert not one.pulling, f"{where}: {source} pulls weights"
        assert not other.pulling, f"{where}: {destination} pulls weights"
        assert one.in_flight > 0, f"{where}: {source} has nothing to move"
        kv[destination] += one.kv
        requests[destination] += one.in_flight
    for name in destinations:
        assert kv[name] <= kv_limit + 1e-9, f"{where}: {name} is planned to {kv[name]} of its KV cache"
        assert requests[name] <= by_name[name].capacity, f"{where}: {name} is planned to {requests[name]} trajectories"


def check_routing_policy(policy: RoutingPolicy, *, seed: int = 0, cases: int = 300) -> None:
    """Hold a routing policy to its contract: it returns a candidate, and the same one every time it is asked.

    Raises:
        AssertionError: the policy breaks the contract; the message names the seed.
    """
    for case in range(seed, seed + cases):
        random_numbers = random.Random(case)
        views = random_views(random_numbers, random_numbers.randrange(1, 12))
        order = random_numbers.randrange(1000)
        chosen = policy.choose(views, order)
        assert chosen in {view.replica for view in views}, f"seed {case}: {chosen!r} is not a candidate"
        assert policy.choose(views, order) == chosen, f"seed {case}: the choice is not deterministic"
        shuffled = random_numbers.sample(views, len(views))
        assert policy.choose(shuffled, order) == chosen, (
            f"seed {case}: the choice depends on the order of the candidates"
        )
