"""Relocation and routing policies: their contracts, what they leave alone, and their plugin names."""

import dataclasses
import random

import pytest

from tailrace.contracts import (
    Cycle,
    Evict,
    Move,
    Placement,
    Progress,
    Reason,
    RelocationPolicy,
    ReplicaView,
    RoutingPolicy,
    Sync,
    SyncPolicy,
    TrajectoryView,
    Why,
)
from tailrace.contracts.plugins import load, names
from tailrace.repack import (
    Barrier,
    BestFit,
    Interrupting,
    LeastLoaded,
    LoadError,
    NoRelocation,
    RoundRobin,
    WhenDrained,
)
from tailrace.repack.testing import SlotAdmission, check_relocation_policy, check_routing_policy, check_sync_policy


def view(replica, **changes):
    return dataclasses.replace(
        ReplicaView(
            replica=replica,
            version=1,
            pulling=False,
            in_flight=2,
            capacity=64,
            kv=0.1,
            kv_before=0.05,
            kv_peak=0.9,
            waiting=0,
            fresh=True,
        ),
        **changes,
    )


def cycle(replicas, pool=(), slots=None, routings=0):
    queues = {}
    for waiting in pool:
        queues.setdefault(waiting.version, {})[waiting.trajectory] = waiting
    return Cycle(
        replicas=replicas,
        pool=queues,
        admits=SlotAdmission({0: 100} if slots is None else slots),
        progress=Progress(1, 1, 0, 0, 0, 0, 0, 4, 100),
        routing=LeastLoaded(),
        routings=routings,
    )


def members(group, count, **fields):
    return [TrajectoryView(f"{group}.{number}", group, **fields) for number in range(count)]


def where(placements):
    return [(placement.trajectory, placement.replica) for placement in placements]


@pytest.mark.parametrize(
    ("policy", "limit", "moves"),
    [
        (NoRelocation(), 1.0, False),
        (BestFit(), 0.99, True),
        (BestFit(headroom=0.2, roofline_batch=3), 0.79, True),
        (BestFit(literal=True, kv_threshold=0.5), 0.5, True),
        (BestFit(projected=True), 0.99, True),
    ],
)
def test_relocation_contract(policy, limit, moves):
    assert (check_relocation_policy(policy, kv_limit=limit) > 0) == moves


@pytest.mark.parametrize("policy", [RoundRobin(), LeastLoaded()])
def test_routing_contract(policy):
    assert check_routing_policy(policy) > 300


class Swap(RelocationPolicy):
    """Breaks the contract: two replicas exchange their trajectories."""

    def due(self, now_s, last_s, stepped):
        return True

    def plan(self, cycle):
        busy = [view.replica for view in cycle.replicas if view.in_flight]
        return [Move(busy[0], busy[1]), Move(busy[1], busy[0])] if len(busy) > 1 else []


class Overfill(RelocationPolicy):
    """Breaks the contract: everything goes to one replica."""

    def due(self, now_s, last_s, stepped):
        return True

    def plan(self, cycle):
        ready = sorted(
            (
                view
                for view in cycle.replicas
                if view.version == 4 and not view.pulling and not view.pinned and view.in_flight
            ),
            key=lambda view: view.replica,
        )
        return [Move(view.replica, ready[0].replica) for view in ready[1:]]


class Unsaid(RelocationPolicy):
    """Breaks the contract: it evicts, and its reason lacks what comes with it."""

    def due(self, now_s, last_s, stepped):
        return True

    def plan(self, cycle):
        reason = Reason(Why.WAITING_TOO_LONG, numbers={"waiting": 1})
        return [
            Evict(view.replica, tuple(view.trajectories)[:1], reason) for view in cycle.replicas if view.trajectories
        ]


@pytest.mark.parametrize(
    ("policy", "words"),
    [(Swap(), "both source and destination"), (Overfill(), "is planned to"), (Unsaid(), "limit")],
)
def test_the_relocation_contract_catches(policy, words):
    with pytest.raises(AssertionError, match=words):
        check_relocation_policy(policy)


def breaks(rule):
    class Routing(RoutingPolicy):
        def route(self, cycle):
            serving = [view for view in cycle.replicas if view.version is not None and not view.pulling]
            serving.sort(key=lambda view: view.replica)
            waiting = [view for queue in cycle.pool.values() for view in queue.values()]
            return rule(cycle, serving, waiting)

    return Routing()


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        (lambda cycle, serving, pool: [Placement(view.trajectory, "nobody") for view in pool], "not a replica"),
        (lambda cycle, serving, pool: [Placement("stray", view.replica) for view in serving][:1], "not in the pool"),
        (
            lambda cycle, serving, pool: [
                Placement(view.trajectory, one.replica, Reason(Why.CHOSEN, numbers={"gain": 1.0}))
                for view in pool
                for one in serving
                if view.version == one.version
            ][:1],
            "least",
        ),
        (lambda cycle, serving, pool: [Placement(pool[0].trajectory, "x")] * 2 if pool else [], "twice"),
        (
            lambda cycle, serving, pool: [
                Placement(view.trajectory, serving[0].replica) for view in pool if serving and view.version is None
            ],
            "not open|admission does not allow|or newer|exactly",
        ),
        (
            lambda cycle, serving, pool: [
                Placement(view.trajectory, one.replica)
                for view in pool
                for one in serving
                if view.version and one.version < view.version
            ][:1],
            "or newer|exactly",
        ),
        (lambda cycle, serving, pool: cycle.admits.take(7777, 5) or [] if cycle.admits.allows(5) else [], "a fork"),
    ],
)
def test_the_routing_contract_catches(rule, words):
    with pytest.raises(AssertionError, match=words):
        check_routing_policy(breaks(rule))


class Pulls(SyncPolicy):
    """Breaks the contract in its own way."""

    mixes_versions = True

    def __init__(self, rule):
        self.rule = rule

    def pulls(self, cycle):
        return self.rule(cycle)

    def accepts(self, replica, progress):
        return True


def waiting(cycle):
    return [view for view in cycle.replicas if not view.pulling and not view.pinned]


def takes(cycle):
    if cycle.admits.allows(5):
        cycle.admits.take(7777, 5)
    return ()


def first_of(cycle):
    return [sync for sync in Interrupting().pulls(cycle) if sync.replica == cycle.replicas[0].replica]


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        (lambda cycle: [Sync(view.replica) for view in waiting(cycle)], "published is"),
        (lambda cycle: [Sync(view.replica) for view in cycle.replicas if not view.pulling], "pinned|published is"),
        (lambda cycle: [Sync(view.replica) for view in cycle.replicas if view.pulling], "while it pulls"),
        (lambda cycle: [*Interrupting().pulls(cycle)] * 2, "pulls twice"),
        (lambda cycle: [Sync("nobody")], "not a replica"),
        (takes, "a fork"),
        (first_of, "order of the replicas"),
        (lambda cycle: [Sync(sync.replica, Reason(Why.NEWER)) for sync in Interrupting().pulls(cycle)], "version"),
    ],
)
def test_the_sync_contract_catches(rule, words):
    with pytest.raises(AssertionError, match=rf"seed \d+.*({words})"):
        check_sync_policy(Pulls(rule))


def idle(replica, version=1, **changes):
    return view(replica, version=version, in_flight=0, **changes)


def pulls(replicas, pool=(), slots=None, published=2, policy=None):
    seen = dataclasses.replace(cycle(replicas, pool, slots), progress=Progress(2, published, 0, 0, 0, 0, 0, 4, 100))
    return [sync.replica for sync in (policy or WhenDrained()).pulls(seen)]


def test_a_drained_replica_pulls_alone():
    busy = view("b", version=1)
    assert pulls([idle("a"), busy, idle("c", version=2), idle("d", version=None)]) == ["a", "d"]
    assert pulls([idle("a"), busy], published=1) == []


def test_at_a_barrier_all_wait_but_one_that_came_up_beside_replicas_that_serve_the_newest():
    busy, new = view("b", version=2), idle("n", version=None)
    assert pulls([idle("a"), idle("b"), new], policy=Barrier()) == ["a", "b", "n"]
    assert pulls([busy, new, idle("d", version=2)], policy=Barrier()) == ["n"]
    assert pulls([busy, idle("n", version=None, pulling=True)], policy=Barrier()) == []
    assert pulls([busy, new, idle("a")], policy=Barrier()) == []  # it would begin before the barrier
    assert pulls([view("b", version=1), new], policy=Barrier()) == []


def test_a_replica_is_not_drained_while_something_may_start_at_its_version():
    fleet = [idle("a", version=1)]
    assert pulls(fleet, members(0, 1), slots={1: 1}) == []
    assert pulls(fleet, members(0, 1), slots={2: 1}) == ["a"]
    assert pulls(fleet, members(0, 1), slots={1: 1}, published=3) == ["a"]  # too far behind to begin anything
    assert pulls(fleet, members(0, 1), slots={1: 1}, published=3, policy=WhenDrained(behind=2)) == []
    assert pulls(fleet, members(0, 1, version=1, exact=True), slots={}) == []


def test_a_replica_that_is_behind_takes_what_its_room_allows():
    progress = Progress(2, 2, 0, 0, 0, 0, 0, 4, 100)
    policy = WhenDrained()
    assert policy.accepts(view("a", version=1), progress)
    assert policy.accepts(view("a", version=2), progress)
    assert not policy.accepts(view("a", version=0), progress)
    assert not policy.accepts(view("a", version=None), progress)
    assert not policy.accepts(view("a", in_flight=64), progress)
    with pytest.raises(LoadError, match="behind=-1"):
        WhenDrained(behind=-1)


def test_best_fit_releases_a_replica():
    assert BestFit().plan(cycle([view("a"), view("b", kv=0.2)])) == [Move("a", "b")]


@pytest.mark.parametrize(
    "changes",
    [
        {"pulling": True},
        {"pinned": True},
        {"in_flight": 0},
        {"waiting": 1},
        {"fresh": False},
        {"version": None},
        {"version": 2},
        {"kv": 0.9},
        {"in_flight": 63},
    ],
)
def test_best_fit_leaves_alone(changes):
    assert BestFit().plan(cycle([view("a"), view("b", **changes)])) == []


def running(*left, capacity=10_000, **fields):
    """A replica that runs one trajectory for each of these: tokens that are left of it, None if that is not predicted."""
    name = fields.pop("name", "a")
    held = {f"{name}/{n}": TrajectoryView(f"{name}/{n}", n, 1, left=tokens) for n, tokens in enumerate(left)}
    return view(name, in_flight=len(left), running=len(left), kv_capacity_tokens=capacity, trajectories=held, **fields)


def test_best_fit_by_what_is_left():
    """At 0.2 and 0.3 of the cache both fit together. By what is left of them they would need 1.3 of it."""
    growing = [running(4_000, 4_000, kv=0.2), running(100, 1_000, name="b", kv=0.3)]
    ending = [running(100, 200, kv=0.2), running(100, 1_000, name="b", kv=0.3)]
    for views in (growing, ending):
        assert len(BestFit().plan(cycle(views))) == 1
    assert BestFit(projected=True).plan(cycle(growing)) == []
    assert BestFit(projected=True).plan(cycle(ending)) == BestFit().plan(cycle(ending))
    unknown = [dataclasses.replace(each, kv_capacity_tokens=0) for each in growing]
    assert BestFit(projected=True).plan(cycle(unknown)) == BestFit().plan(cycle(unknown))


def test_best_fit_literally():
    growing, falling = [view("a"), view("b")], [view("a", kv_before=0.2), view("b", kv_before=0.2)]
    assert BestFit(literal=True).plan(cycle(growing)) == []
    assert BestFit(literal=True).plan(cycle(falling)) == [Move("a", "b")]


def test_when_best_fit_plans():
    policy = BestFit(period_s=5.0)
    assert not policy.due(104.9, 100.0, False)
    assert policy.due(105.0, 100.0, False)
    assert policy.due(100.0, 100.0, True)
    assert not NoRelocation().due(1e9, 0.0, True)


@pytest.mark.parametrize(
    "options",
    [{"kv_threshold": 1.5}, {"headroom": 0.99}, {"roofline_batch": 0}, {"period_s": 0.0}, {"period_s": float("nan")}],
)
def test_best_fit_refuses(options):
    with pytest.raises(LoadError, match=next(iter(options))):
        BestFit(**options)


def test_round_robin_takes_turns():
    idle = [view("c", in_flight=0), view("a", in_flight=0), view("b", in_flight=0)]
    pool = [*members(0, 2), *members(1, 2), *members(2, 1), *members(3, 1)]
    assert [replica for _, replica in where(RoundRobin().route(cycle(idle, pool)))] == [*"aabbca"]
    assert [replica for _, replica in where(RoundRobin().route(cycle(idle, pool, routings=4)))] == [*"bbccab"]


def test_least_loaded_looks_at_the_share_taken():
    pool = members(0, 1)
    fleet = [view("a", in_flight=8), view("b", in_flight=4, capacity=16)]
    assert where(LeastLoaded().route(cycle(fleet, pool))) == [("0.0", "a")]
    assert where(LeastLoaded().route(cycle([view("a"), view("b", kv=0.05)], pool))) == [("0.0", "b")]


@pytest.mark.parametrize("policy", [RoundRobin(), LeastLoaded()])
def test_groups_start_whole_where_there_is_room(policy):
    fleet = [view("a", in_flight=62), view("b", in_flight=61)]
    pool = [*members(0, 4), *members(1, 3), *members(2, 2), *members(3, 1)]
    # Group 0 fits nowhere and is passed over.
    assert where(policy.route(cycle(fleet, pool))) == [
        *[(f"1.{number}", "b") for number in range(3)],
        ("2.0", "a"),
        ("2.1", "a"),
    ]


@pytest.mark.parametrize("policy", [RoundRobin(), LeastLoaded()])
def test_a_group_larger_than_a_replica_goes_to_an_empty_one(policy):
    fleet = [view("a", in_flight=1, capacity=4), view("b", in_flight=0, capacity=4)]
    assert [replica for _, replica in where(policy.route(cycle(fleet, members(0, 6))))] == ["b"] * 6


@pytest.mark.parametrize("policy", [RoundRobin(), LeastLoaded()])
def test_what_goes_on_needs_no_room_and_goes_first(policy):
    fleet = [view("a", in_flight=64, open=False), view("b", version=2, in_flight=64, open=False)]
    pool = [
        *members(0, 1, version=2),
        *members(1, 1),
        *members(2, 1, version=1, exact=True),
        *members(3, 1, version=3),
    ]
    assert where(policy.route(cycle(fleet, pool))) == [("2.0", "a"), ("0.0", "b")]


@pytest.mark.parametrize("policy", [RoundRobin(), LeastLoaded()])
def test_admission_decides_which_versions_start(policy):
    fleet = [view("a", version=1), view("b", version=2)]
    pool = [*members(0, 1), *members(1, 1), *members(2, 1)]
    assert [replica for _, replica in where(policy.route(cycle(fleet, pool, slots={2: 2})))] == ["b", "b"]
    assert policy.route(cycle(fleet, pool, slots={3: 9})) == []


@pytest.mark.parametrize("seed", range(20))
def test_least_loaded_equals_a_plain_search(seed):
    numbers = random.Random(seed)
    fleet = [
        view(
            f"r{index:02}",
            in_flight=numbers.randrange(17),
            capacity=16,
            kv=numbers.randrange(3) / 4,
            open=numbers.random() < 0.8,
        )
        for index in range(numbers.randrange(1, 12))
    ]
    groups = [members(group, numbers.randrange(1, 6)) for group in range(40)]
    held = {one.replica: one.in_flight for one in fleet}
    expected = []
    for group in groups:
        fits = [
            one
            for one in fleet
            if one.open and (held[one.replica] + len(group) <= one.capacity or not held[one.replica])
        ]
        if fits:
            best = min(fits, key=lambda one: (held[one.replica] / one.capacity, one.kv, one.replica))
            held[best.replica] += len(group)
            expected += [(one.trajectory, best.replica) for one in group]
    pool = [one for group in groups for one in group]
    assert where(LeastLoaded().route(cycle(fleet, pool))) == expected, f"seed {seed}"


def test_plugin_names():
    assert {"none", "best-fit"} <= set(names("tailrace.relocation"))
    assert {"round-robin", "least-loaded"} <= set(names("tailrace.routing"))
    assert load("tailrace.relocation", "best-fit") is BestFit
    assert load("tailrace.routing", "round-robin") is RoundRobin
