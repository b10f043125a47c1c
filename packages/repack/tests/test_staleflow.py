"""StaleFlow's strategies equal their algorithms carried out step by step, in every detail and in order."""

import dataclasses
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.contracts import RoutingPolicy, TrajectoryView, Why
from tailrace.repack import (
    Interrupting,
    LeastLoaded,
    MarginalThroughput,
    Migration,
    RoundRobin,
    ThroughputModel,
    WhenUseful,
    gains,
    marginal_gain,
    marginal_throughput,
    migration,
    sync,
)
from tailrace.repack.sync import BlockedHeads
from tailrace.repack.testing import (
    SlotAdmission,
    check_relocation_policy,
    check_routing_policy,
    check_sync_policy,
    random_cycle,
)
from tailrace.repack.testing.staleflow_reference import migrate_slowly, route_slowly, sync_slowly

TABLE_4 = (7.28e-8, 1.72e-3, 1.25e-4, 1.07e-2)
MODELS = (TABLE_4, (4e-7, 2e-3, 1e-4, 1e-3), (0.0, 1e-3, 1e-4, 0.0), (1e-6, 1e-3, 0.0, 1e-3), (5e-8, 0.0, 1e-3, 1e-3))


class Plain(RoutingPolicy):
    """The same routing behind another class: the path that works with any policy."""

    def __init__(self, policy):
        self.policy = policy

    def route(self, cycle):
        return self.policy.route(cycle)


def loaded(view, numbers):
    count = numbers.choice([5, 40, 60, 60])
    held = {
        f"{view.replica}-{number}": TrajectoryView(
            f"{view.replica}-{number}", 2000 + number, numbers.choice([2, 3]), numbers.choice([100, 3000, 12_000])
        )
        for number in range(count)
    }
    return dataclasses.replace(
        view,
        trajectories=held,
        in_flight=count,
        running=count,
        waiting=0,
        capacity=64,
        kv_capacity_tokens=numbers.choice([0, 300_000]),
    )


def cycles(seed, policy, fleet, groups):
    numbers = random.Random(seed)
    cycle = random_cycle(numbers, replicas=fleet, groups=groups, routing=policy)
    style = numbers.choice(["any", "mixing", "behind", "heavy", "level"])
    views = list(cycle.replicas)
    if style != "any":  # mostly work that may go on under newer weights, and replicas that are known well
        views = [dataclasses.replace(view, fresh=True, pulling=False, pinned=False) for view in views]
    if style == "heavy":  # many long trajectories, by which most replicas gain too little
        views = [loaded(view, numbers) if view.version else view for view in views]
    if style in ("behind", "heavy"):  # nothing may start but at the newest version
        views = [dataclasses.replace(view, version=view.version and min(view.version, 4)) for view in views]
        cycle = dataclasses.replace(
            cycle,
            admits=SlotAdmission({5: 3}),
            pool={key: queue for key, queue in cycle.pool.items() if key in (None, 5)},
        )
    if style == "level":  # many replicas alike: classes are large
        views = [
            dataclasses.replace(view, version=4, running=numbers.choice([2, 3]), waiting=0, kv=0.25, capacity=64)
            for view in views
        ]
    return dataclasses.replace(cycle, replicas=sorted(views, key=lambda view: view.replica))


policies = st.builds(
    lambda model, mu, prompt, predicted: MarginalThroughput(*model, mu=mu, prompt_tokens=prompt, predicted=predicted),
    st.sampled_from(MODELS),
    st.sampled_from([0.01, 0.3, 0.7, 1.0]),
    st.sampled_from([0, 100]),
    st.booleans(),
)
seeds = st.integers(0, 2**32)


@settings(max_examples=400, deadline=None)
@given(seeds, policies, st.sampled_from([4, 12, 40]), st.sampled_from([4, 40]))
def test_the_waterfall_equals_algorithm_3(seed, policy, fleet, groups):
    cycle = cycles(seed, policy, fleet, groups)
    assert list(policy.route(cycle)) == route_slowly(policy, cycle)


@settings(max_examples=400, deadline=None)
@given(seeds, policies, st.sampled_from([4, 12, 40]), st.sampled_from([4, 40]))
def test_when_useful_equals_algorithm_4(seed, policy, fleet, groups):
    cycle = cycles(seed, policy, fleet, groups)
    expected = sync_slowly(cycle)
    assert WhenUseful().pulls(cycle) == expected
    assert WhenUseful().pulls(dataclasses.replace(cycle, routing=Plain(policy))) == expected


@settings(max_examples=200, deadline=None)
@given(seeds, policies, st.sampled_from([4, 12, 40]), st.booleans())
def test_bounded_trials_find_the_same_over_several_cycles(seed, policy, fleet, plain):
    """One candidate in each cycle: whoever pulls is useful, and everyone who is has its turn."""
    cycle = cycles(seed, policy, fleet, 12)
    cycle = dataclasses.replace(cycle, routing=Plain(policy)) if plain else cycle
    found = {}
    for turn in range(fleet):
        found |= {sync.replica: sync for sync in WhenUseful(trials=1).pulls(dataclasses.replace(cycle, turn=turn))}
    assert found == {sync.replica: sync for sync in sync_slowly(cycle)}


@settings(max_examples=400, deadline=None)
@given(seeds, st.sampled_from(MODELS), st.integers(0, 4), st.sampled_from([1.0, 1.5, 5.0]), st.sampled_from([3, 12]))
def test_migration_equals_algorithm_5(seed, model, phi_wait, phi_throughput, fleet):
    policy = Migration(*model, phi_wait=phi_wait, phi_throughput=phi_throughput)
    cycle = cycles(seed, MarginalThroughput(*model), fleet, random.Random(seed).choice([0, 12]))
    assert list(policy.plan(cycle)) == migrate_slowly(policy, cycle)


def test_contracts():
    waterfall = MarginalThroughput(*TABLE_4, prompt_tokens=100)
    assert check_routing_policy(waterfall) > 300
    assert check_routing_policy(MarginalThroughput(*TABLE_4, mu=0.9)) > 100
    assert check_routing_policy(MarginalThroughput(*TABLE_4, predicted=True)) > 100
    for routing in (waterfall, LeastLoaded(), RoundRobin()):
        assert check_sync_policy(WhenUseful(), routing=routing, cases=150) > 30
    assert check_sync_policy(Interrupting()) > 300
    assert check_relocation_policy(Migration(*TABLE_4)) > 100


def test_the_properties_see_every_outcome(monkeypatch):
    # The comparisons above would say little over cycles in which nothing happens.
    policy = MarginalThroughput(*TABLE_4)
    seen = {"placed": 0, "held back": 0, "useful": 0, "not useful": 0, "excess": 0, "ahead": 0, "stopped": 0}
    stopped = BlockedHeads.stopped

    def count(self, own, view):
        found = stopped(self, own, view)
        seen["stopped"] += found
        return found

    monkeypatch.setattr(BlockedHeads, "stopped", count)
    for seed in range(300):
        cycle = cycles(seed, policy, 12, 12)
        placed = len(policy.route(cycle))
        seen["placed"] += placed > 0
        seen["held back"] += placed < sum(map(len, cycle.pool.values()))
        whys = [sync.reason.why for sync in WhenUseful().pulls(cycle)]
        seen["useful"] += Why.USEFUL in whys
        seen["not useful"] += len(whys) < len(Interrupting().pulls(cycle))
        whys = [eviction.reason.why for eviction in Migration(*TABLE_4).plan(cycle)]
        seen["excess"] += Why.WAITING_TOO_LONG in whys
        seen["ahead"] += Why.LOW_THROUGHPUT in whys
    assert min(seen.values()) > 20, seen


@pytest.mark.parametrize("seed", range(6))
def test_a_burst_on_a_larger_fleet(seed):
    policy = MarginalThroughput(*TABLE_4, prompt_tokens=120)
    cycle = cycles(seed, policy, 64, 200)
    assert list(policy.route(cycle)) == route_slowly(policy, cycle), f"seed {seed}"
    assert WhenUseful().pulls(cycle) == sync_slowly(cycle), f"seed {seed}"


def _without_kv(tried):
    def wrong(cycle, view):
        then = tried(cycle, view)
        views = [
            dataclasses.replace(one, kv=view.kv, running=view.running) if one.replica == view.replica else one
            for one in then.replicas
        ]
        return dataclasses.replace(then, replicas=views)

    return wrong


def _without_own(tried):
    return lambda cycle, view: dataclasses.replace(tried(cycle, view), pool=cycle.pool)


def _at_old_version(tried):
    def wrong(cycle, view):
        then = tried(cycle, view)
        views = [
            dataclasses.replace(one, version=view.version) if one.replica == view.replica else one
            for one in then.replicas
        ]
        return dataclasses.replace(then, replicas=views)

    return wrong


def _routes(policy, cycle):
    return list(policy.route(cycle)), route_slowly(policy, cycle)


def _syncs(policy, cycle):
    return WhenUseful().pulls(dataclasses.replace(cycle, routing=Plain(policy))), sync_slowly(
        dataclasses.replace(cycle, routing=Plain(policy))
    )


def _migrates(policy, cycle):
    one = Migration(policy.k1, policy.k2, policy.k3, policy.k4)
    return list(one.plan(cycle)), migrate_slowly(one, cycle)


BUGS = {
    "tried keeps the cache": (sync, "tried", _without_kv, _syncs),
    "tried keeps its own trajectories": (sync, "tried", _without_own, _syncs),
    "tried does not pull": (sync, "tried", _at_old_version, _syncs),
    "planned_with takes the pinned": (
        marginal_throughput, "planned_with",
        lambda right: lambda view: view.fresh and view.version is not None and not view.pulling, _routes,
    ),
    "planned_with takes the stale": (
        migration, "planned_with",
        lambda right: lambda view: view.version is not None and not view.pulling and not view.pinned, _migrates,
    ),
    "kv_tokens leaves a trajectory out": (
        gains, "kv_tokens",
        lambda right: lambda view: right(view) if view.kv_capacity_tokens else right(view) // 2, _routes,
    ),
    "kv_tokens counts twice": (migration, "kv_tokens", lambda right: lambda view: 2 * right(view), _migrates),
}  # fmt: skip


@pytest.mark.parametrize("bug", BUGS)
def test_a_wrong_helper_of_the_code_is_seen(bug, monkeypatch):
    """The references share no helper with the code: a bug that is planted in one makes a difference."""
    module, name, plant, compare = BUGS[bug]
    policy = MarginalThroughput(*TABLE_4, mu=0.1)
    monkeypatch.setattr(module, name, plant(getattr(module, name)))
    for seed in range(200):
        found, expected = compare(policy, cycles(seed, policy, 12, 12))
        if found != expected:
            return
    raise AssertionError(f"{bug}: nothing differed in 200 cycles from seed 0 on")


@settings(max_examples=200, deadline=None)
@given(
    st.sampled_from(MODELS), st.integers(0, 40_000), st.integers(0, 70), st.integers(0, 2), st.integers(1, 9_000),
    st.sampled_from([0, 30_000]), st.sampled_from([None, 64]),
)  # fmt: skip
def test_the_gain_is_that_of_equation_3(model, kv, running, waiting, length, budget, capacity):
    k1, k2, k3, k4 = model
    fits = waiting == 0 and (not budget or kv + length <= budget) and (capacity is None or running < capacity)
    before = running / (k1 * kv + max(k2, k3 * running) + k4) if running else 0.0
    after = (running + 1) / (k1 * (kv + length) + max(k2, k3 * (running + 1)) + k4)
    found = marginal_gain(
        ThroughputModel(*model), kv_tokens=kv, running=running, waiting=waiting, length=length,
        kv_budget_tokens=budget, capacity=capacity,
    )  # fmt: skip
    assert found == pytest.approx(after - before if fits else 0.0, abs=1e-9)
