"""Contract suite for routing policies."""

from __future__ import annotations

import random
from collections.abc import Sequence

from tailrace.contracts import Cycle, Placement, RoutingPolicy
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
