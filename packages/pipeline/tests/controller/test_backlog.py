"""A large backlog is routed over several decisions, each of a bounded size, and comes to the same."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted import Scripted, of, policy, spec

from tailrace import contracts as c
from tailrace.pipeline.controller.backlog import first_of


def routed(run):
    return [ref.trajectory for route in of(c.Route, run.given) for ref in route.trajectories]


def large(most, routing="least-loaded", mixes=False):
    sync = policy("sync", "interrupting" if mixes else "on-idle")
    made = {"buffer_groups": 60, "batch_groups": 20, "steps": 3, "replica_batch": 64}
    run = Scripted(spec(cycle_trajectories=most, routing=policy("routing", routing), sync=sync, **made))
    run.go(c.Tick(), leave=(c.Route,))
    return run


@pytest.mark.parametrize("routing", ["least-loaded", "round-robin"])
@pytest.mark.parametrize("mixes", [False, True])
def test_each_decision_routes_so_much_and_all_of_it_is_routed_in_the_end(routing, mixes):
    whole, parts = large(10_000, routing, mixes), large(16, routing, mixes)
    assert len(routed(whole)) == 120
    for _ in range(20):
        parts.later(0.1, leave=(c.Route,))
    sizes = [sum(len(route.trajectories) for route in of(c.Route, commands)) for _, _, commands in parts.calls]
    assert max(sizes) <= 17  # whole groups of two
    assert sum(size > 0 for size in sizes) >= 120 // 17
    if mixes or routing == "round-robin":  # a replica that works is given more
        assert sorted(routed(parts)) == sorted(routed(whole))
    for run in (whole, parts):
        run.catch_up()
        for _ in range(40):
            run.later(0.1)
        assert run.view.finished
        assert run.view.counts.trained == 60
        assert len(routed(run)) == len(set(routed(run))) == 120


def test_what_is_left_does_not_wait_for_a_tick():
    run = large(16)
    assert run.controller.coordinator.backlog
    before = len(routed(run))
    run.go(c.Suspect("replica", "r1", 1.0), leave=(c.Route,))
    assert len(routed(run)) > before


@given(
    sizes=st.lists(st.integers(1, 4), max_size=8),
    older=st.dictionaries(st.integers(0, 3), st.integers(1, 5), max_size=3),
    most=st.integers(1, 30),
)
def test_the_first_part_of_a_pool(sizes, older, most):
    fresh = c.Unstarted()
    for group, size in enumerate(sizes):
        fresh.add(group, [f"{group}.{sample}" for sample in range(size)])
    pool = {
        version: {f"v{version}.{i}": c.TrajectoryView(f"v{version}.{i}", 100 + version, version) for i in range(count)}
        for version, count in sorted(older.items())
    }
    if sizes:
        pool[None] = fresh
    names = [name for level in pool.values() for name in level]
    part = first_of(pool, most)
    found = [name for level in part.values() for name in level]
    assert found == names[: len(found)]  # the same order: the oldest version first
    assert min(most, len(names)) <= len(found) < most + 4
    assert list(part) == list(pool)[: len(part)]
