"""Relocation and routing policies: their contracts, what they leave alone, and their plugin names."""

import dataclasses

import pytest

from tailrace.contracts import Move, ReplicaView
from tailrace.contracts.plugins import load, names
from tailrace.repack import BestFit, LeastLoaded, LoadError, NoRelocation, RoundRobin
from tailrace.repack.testing import check_relocation_policy, check_routing_policy


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


@pytest.mark.parametrize(
    ("policy", "limit", "moves"),
    [
        (NoRelocation(), 1.0, False),
        (BestFit(), 0.99, True),
        (BestFit(headroom=0.2, roofline_batch=3), 0.79, True),
        (BestFit(literal=True, kv_threshold=0.5), 0.5, True),
    ],
)
def test_relocation_contract(policy, limit, moves):
    assert (check_relocation_policy(policy, kv_limit=limit) > 0) == moves


@pytest.mark.parametrize("policy", [RoundRobin(), LeastLoaded()])
def test_routing_contract(policy):
    check_routing_policy(policy)


class Swap:
    """Breaks the contract: two replicas exchange their trajectories."""

    def due(self, now_s, last_s, stepped):
        return True

    def plan(self, replicas):
        busy = [view.replica for view in replicas if view.in_flight]
        return [Move(busy[0], busy[1]), Move(busy[1], busy[0])] if len(busy) > 1 else []


class Overfill:
    """Breaks the contract: everything goes to one replica."""

    def due(self, now_s, last_s, stepped):
        return True

    def plan(self, replicas):
        ready = sorted(
            (view for view in replicas if view.version == 4 and not view.pulling and view.in_flight),
            key=lambda view: view.replica,
        )
        return [Move(view.replica, ready[0].replica) for view in ready[1:]]


@pytest.mark.parametrize(("policy", "words"), [(Swap(), "both source and destination"), (Overfill(), "is planned to")])
def test_the_relocation_contract_catches(policy, words):
    with pytest.raises(AssertionError, match=words):
        check_relocation_policy(policy)


def test_the_routing_contract_catches():
    class Stranger:
        def choose(self, candidates, order):
            return "nobody"

    with pytest.raises(AssertionError, match="not a candidate"):
        check_routing_policy(Stranger())


def test_best_fit_releases_a_replica():
    assert BestFit().plan([view("a"), view("b", kv=0.2)]) == [Move("a", "b")]


@pytest.mark.parametrize(
    "changes",
    [
        {"pulling": True},
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
    assert BestFit().plan([view("a"), view("b", **changes)]) == []


def test_best_fit_literally():
    growing, falling = [view("a"), view("b")], [view("a", kv_before=0.2), view("b", kv_before=0.2)]
    assert BestFit(literal=True).plan(growing) == []
    assert BestFit(literal=True).plan(falling) == [Move("a", "b")]


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
    views = [view("c"), view("a"), view("b")]
    assert [RoundRobin().choose(views, order) for order in range(4)] == ["a", "b", "c", "a"]


def test_least_loaded_looks_at_the_share_taken():
    assert LeastLoaded().choose([view("a", in_flight=8), view("b", in_flight=4, capacity=16)], 0) == "a"
    assert LeastLoaded().choose([view("a"), view("b", kv=0.05)], 0) == "b"


def test_plugin_names():
    assert {"none", "best-fit"} <= set(names("tailrace.relocation"))
    assert {"round-robin", "least-loaded"} <= set(names("tailrace.routing"))
    assert load("tailrace.relocation", "best-fit") is BestFit
    assert load("tailrace.routing", "round-robin") is RoundRobin
