"""A large backlog is routed over several decisions, each of a bounded size, and comes to the same."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted import Scripted, of, policy, spec

from tailrace import contracts as c
from tailrace.controller.pool import first_of


def routed(run):
    return [ref.trajectory for route in of(c.Route, run.given) for ref in route.trajectories]


SYNCS = {"on-idle": ("round-robin", "least-loaded"), "barrier": ("round-robin",), "interrupting": ("least-loaded",)}
PAIRS = [(sync, routing) for sync, routings in SYNCS.items() for routing in routings]


def large(most, sync="on-idle", routing="least-loaded", replicas=8, ticks=40):
    """A run that has just given its replicas, of 16 trajectories each, what they can hold of a larger backlog."""
    policies = {
        "sync": policy("sync", sync),
        "routing": policy("routing", routing),
        "provisioning": policy("provisioning", "static", count=replicas),
    }
    run = Scripted(
        spec(cycle_trajectories=most, buffer_groups=80, batch_groups=20, steps=4, replica_batch=16, **policies)
    )
    run.go(c.Tick(), leave=(c.Route,))
    for _ in range(ticks):
        run.later(0.1, leave=(c.Route,))
    return run


def loads(run):
    return {replica.id: len(replica.assigned) for replica in run.controller.fleet.replicas.values()}


@pytest.mark.parametrize(("sync", "routing"), PAIRS)
@pytest.mark.parametrize("most", [1, 16, 40, 100])
def test_each_decision_routes_so_much_and_in_the_end_it_is_the_same(most, sync, routing):
    whole, parts = large(10_000, sync, routing), large(most, sync, routing)
    sizes = [sum(len(route.trajectories) for route in of(c.Route, commands)) for _, _, commands in parts.calls]
    assert max(sizes) < max(most, 16) + 16  # a replica's whole batch more at most
    assert loads(parts) == loads(whole) == dict.fromkeys(loads(whole), 16)
    assert set(routed(parts)) == set(routed(whole))
    for run in (whole, parts):
        run.catch_up()
        for _ in range(40):
            run.later(0.1)
        assert run.view.finished
        assert run.view.counts.trained == 80
        assert len(routed(run)) == len(set(routed(run))) == 160


@pytest.mark.parametrize("most", [1, 30])
def test_what_was_interrupted_is_a_backlog_too(most):
    run = large(most, "interrupting")
    run.forget(c.Route)
    for replica in loads(run):
        run.down("replica", replica, leave=(c.Route,))
    for _ in range(40):
        run.later(0.1, leave=(c.Route,))
    assert sum(loads(run).values()) == len(set(routed(run))) == 160


def test_what_is_left_does_not_wait_for_a_tick():
    run = large(16, ticks=0)
    assert run.controller.coordinator.backlog
    before = len(routed(run))
    run.go(c.Silent("replica", "r1", 1.0), leave=(c.Route,))
    assert len(routed(run)) > before


@given(
    sizes=st.lists(st.integers(1, 4), max_size=8),
    older=st.dictionaries(st.integers(0, 3), st.integers(1, 5), max_size=3),
    most=st.integers(1, 30),
)
def test_the_first_part_of_a_pool(sizes, older, most):
    fresh = c.Unstarted()
    for group, size in enumerate(sizes):
        fresh.add(group, [f"{group}.{sample}" for sample in range(size)], tokens=group)
    pool = {
        version: {f"v{version}.{i}": c.TrajectoryView(f"v{version}.{i}", 100 + version, version) for i in range(count)}
        for version, count in sorted(older.items())
    }
    if sizes:
        pool[None] = fresh
    names = [name for level in pool.values() for name in level]
    part = first_of(pool, most)
    found = [name for level in part.values() for name in level]
    assert all(level[name] == pool[version][name] for version, level in part.items() for name in level)
    assert found == names[: len(found)]  # the same order: the oldest version first
    assert min(most, len(names)) <= len(found) < most + 4
    assert list(part) == list(pool)[: len(part)]


def test_each_trajectory_that_resumes_takes_a_turn_of_the_routing():
    run = Scripted(spec(routing=policy("routing", "round-robin")))
    run.go(c.Tick(), leave=(c.Route,))
    ledger = run.controller.ledger

    def started():
        return len([group for group in ledger.groups.values() if group.version is not None])

    assert run.controller.coordinator.routings == started()
    held = {name for name, one in ledger.trajectories.items() if one.replica == "r0"}
    given = run.down("replica", "r0", leave=(c.Route,))
    assert held < {ref.trajectory for route in of(c.Route, given) for ref in route.trajectories}
    assert run.controller.coordinator.routings == started() + len(held)


def test_routing_is_not_asked_while_no_replica_serves():
    class Serving(type(policy("routing", "least-loaded"))):
        def route(self, cycle):
            assert any(view.version is not None and not view.pulling for view in cycle.replicas)
            return super().route(cycle)

    run = Scripted(spec(routing=Serving()))
    run.go(c.Tick(), leave=(c.Route,))
    run.forget(c.Route)
    for name in ("r0", "r1"):
        run.down("replica", name, leave=("replica", c.Route))
    assert run.controller.ledger.waiting.queues
    run.later(1.0, leave=(c.Route,))
    run.catch_up()
    assert run.view.finished, run.view.failure
