"""Contract suites for routing, sync and relocation policies: run them on your own class.

Each case is drawn from a seed that a failure names. Standard library only.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from tailrace.contracts import (
    Cycle,
    Evict,
    Move,
    Placement,
    Progress,
    RelocationPolicy,
    ReplicaView,
    RoutingPolicy,
    SyncPolicy,
    TrajectoryView,
)
from tailrace.contracts.testing import check_reason
from tailrace.repack.routing import LeastLoaded

OLDEST, NEWEST = 2, 5
"""Versions that random cycles are about; the newest is published."""


class NotAdmittedError(AssertionError):
    """A group was started that admission does not allow."""


@dataclass(slots=True)
class SlotAdmission:
    """A tentative admission: each version has slots, and a group takes one of its own version or of an older one.

    Args:
        slots: groups that may start, by version.
        taken: groups that were started, with their versions.
    """

    slots: dict[int, int]
    taken: dict[int, int] = field(default_factory=dict)

    def allows(self, version: int) -> bool:
        """Whether a slot is left."""
        return any(left > 0 for slot, left in self.slots.items() if slot <= version)

    def take(self, group: int, version: int) -> None:
        """Use up the newest slot that the version may have.

        Raises:
            NotAdmittedError: none is left, or the group was started before.
        """
        left = [slot for slot, count in self.slots.items() if slot <= version and count > 0]
        if not left:
            raise NotAdmittedError(f"found group {group} started at version {version}, for which no slot is left")
        if group in self.taken:
            raise NotAdmittedError(f"found group {group} started at version {self.taken[group]} and again at {version}")
        self.slots[max(left)] -= 1
        self.taken[group] = version

    def fork(self) -> SlotAdmission:
        """A copy."""
        return SlotAdmission(dict(self.slots), dict(self.taken))


def random_views(random_numbers: random.Random, count: int) -> list[ReplicaView]:
    """Replicas in every state: filling up, full, in their long tail, idle, pulling, pinned, or with stale load."""
    views = []
    for index in range(count):
        capacity = random_numbers.choice([4, 16, 64])
        peak = random_numbers.choice([0.0, 0.25, 0.5, 0.99, 1.0])
        kv = random_numbers.choice([0.0, 0.01, 0.1, 0.25, 0.5, round(random_numbers.random(), 3)])
        in_flight = random_numbers.choice([0, 1, 2, capacity // 2, capacity])
        waiting = min(in_flight, random_numbers.choice([0, 0, 0, 3, 6]))
        version = random_numbers.choice([None, 3, 3, 4, 4, 4, NEWEST])
        views.append(
            ReplicaView(
                replica=f"replica-{index}",
                version=version,
                pulling=random_numbers.random() < 0.1,
                in_flight=in_flight,
                capacity=capacity,
                kv=kv,
                kv_before=random_numbers.choice([kv, round(random_numbers.random(), 3)]),
                kv_peak=max(kv, peak),
                waiting=waiting,
                fresh=random_numbers.random() < 0.9,
                running=in_flight - waiting,
                kv_capacity_tokens=random_numbers.choice([0, 20_000, 100_000, 1_000_000]),
                open=random_numbers.random() < 0.8,
                pinned=random_numbers.random() < 0.1,
                trajectories={
                    view.trajectory: view
                    for number in range(in_flight)
                    if (view := _running(random_numbers, f"on-{index}-{number}", version)) is not None
                },
            )
        )
    return views


def _running(random_numbers: random.Random, name: str, version: int | None) -> TrajectoryView | None:
    if version is None:
        return None
    exact = random_numbers.random() < 0.1
    oldest = version if exact else random_numbers.randint(OLDEST, version)
    return TrajectoryView(name, 1000 + random_numbers.randrange(9), oldest, random_numbers.randrange(3000), exact)


def random_cycle(
    random_numbers: random.Random, *, replicas: int = 12, groups: int = 12, routing: RoutingPolicy | None = None
) -> Cycle:
    """A cycle with replicas in every state and a pool of trajectories that go on and of groups that have not started.

    Args:
        replicas: at most so many.
        groups: at most so many in the pool.
    """
    queues: dict[int | None, dict[str, TrajectoryView]] = {}
    for group in range(random_numbers.randint(0, groups)):
        version = random_numbers.choice([None, None, OLDEST, 3, 4, NEWEST])
        exact, tokens = random_numbers.random() < 0.2, random_numbers.choice([0, 100, 2000])
        for member in range(random_numbers.choice([1, 2, 4, 8])):
            view = TrajectoryView(f"group-{group}-{member}", group, version, tokens + member, exact)
            queues.setdefault(version, {})[view.trajectory] = view
    order = sorted(queues, key=lambda version: (version is None, version or 0))
    return Cycle(
        replicas=random_views(random_numbers, random_numbers.randint(0, replicas)),
        pool={version: queues[version] for version in order},
        admits=SlotAdmission({version: random_numbers.choice([0, 1, 3]) for version in range(OLDEST, NEWEST + 1)}),
        progress=Progress(
            version=NEWEST,
            published=NEWEST,
            admitted=0,
            generating=0,
            buffered=0,
            consumed=0,
            dropped=0,
            batch_groups=4,
            last_version=100,
        ),
        routing=routing or LeastLoaded(),
        routings=random_numbers.randrange(1000),
    )


def _shuffled(cycle: Cycle, random_numbers: random.Random) -> Cycle:
    return dataclasses.replace(cycle, replicas=random_numbers.sample(cycle.replicas, len(cycle.replicas)))


def _idle(view: ReplicaView) -> ReplicaView:
    return dataclasses.replace(view, in_flight=0, running=0, waiting=0, pinned=False, trajectories={})


def check_routing_policy(policy: RoutingPolicy, *, seed: int = 0, cases: int = 300) -> int:
    """Hold a routing policy to the rules of `RoutingPolicy.route`, and to a plan that depends on nothing else.

    Returns:
        Placements over all cases, so that a caller can tell that the suite was not idle.

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
        assert list(policy.route(_shuffled(cycle, random_numbers))) == placements, (
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
    """Hold a sync policy to the rules of `SyncPolicy`: only replicas that are behind pull, and none that must not.

    Args:
        routing: the routing policy of the cycles; the least loaded replica otherwise.

    Returns:
        Pulls over all cases.

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
        again = {sync.replica for sync in policy.pulls(_shuffled(cycle, random_numbers))}
        assert again == set(syncs), f"seed {case}: the pulls depend on the order of the replicas"
        for view in cycle.replicas:
            answer = policy.accepts(view, cycle.progress)
            assert policy.accepts(view, cycle.progress) == answer, f"seed {case}: accepts is not deterministic"
        pulls += len(syncs)
    return pulls


def check_relocation_policy(policy: RelocationPolicy, *, kv_limit: float = 1.0, seed: int = 0, cases: int = 300) -> int:
    """Hold a relocation policy to the rules of `RelocationPolicy.plan`: nothing is lost, overfilled or moved twice.

    Args:
        kv_limit: share of the KV cache that a destination may be planned to.
        seed: of the first case; later ones count up.

    Returns:
        Moves and evictions planned over all cases, so that a caller can tell that the suite was not idle.

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
        again = policy.plan(_shuffled(cycle, random_numbers))
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
    both = destinations & set(sources)
    assert not both, f"{where}: {sorted(both)} are both source and destination, so what moves there is lost"
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
