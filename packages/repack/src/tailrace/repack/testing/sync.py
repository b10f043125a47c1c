"""Contract suite for sync policies."""

from __future__ import annotations

import dataclasses
import random

from tailrace.contracts import ReplicaView, RoutingPolicy, SyncPolicy
from tailrace.contracts.testing import check_reason
from tailrace.repack.testing.cycles import random_cycle, shuffled


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
