"""What StaleFlow's strategies do in cases small enough to follow by hand."""

import dataclasses

import pytest

from tailrace.contracts import Cycle, Evict, Progress, Reason, ReplicaView, TrajectoryView, Why
from tailrace.contracts.plugins import load
from tailrace.repack import (
    Barrier,
    Interrupting,
    LeastLoaded,
    LoadError,
    MarginalThroughput,
    Migration,
    OnIdle,
    WhenUseful,
)
from tailrace.repack.testing import SlotAdmission

TABLE_4 = (7.28e-8, 1.72e-3, 1.25e-4, 1.07e-2)
WATERFALL = MarginalThroughput(*TABLE_4)
FULL = 100  # running trajectories beyond which one of 120 tokens is not worth while


def replica(name, running=0, *, version=5, waiting=0, tokens=120, **changes):
    held = {
        f"{name}{number}": TrajectoryView(f"{name}{number}", 900 + number, version, tokens)
        for number in range(running + waiting)
    }
    view = ReplicaView(
        replica=name,
        version=version,
        pulling=False,
        in_flight=len(held),
        capacity=256,
        kv=running * tokens / 300_000,
        kv_before=0.0,
        kv_peak=0.0,
        waiting=waiting,
        fresh=True,
        running=running,
        kv_capacity_tokens=300_000,
        trajectories=held,
    )
    return dataclasses.replace(view, **changes)


def members(group, count, version=None, tokens=120, **changes):
    return [TrajectoryView(f"{group}.{number}", group, version, tokens, **changes) for number in range(count)]


def cycle(replicas, *pool, slots=None, published=5, routing=WATERFALL):
    queues = {}
    for view in pool:
        queues.setdefault(view.version, {})[view.trajectory] = view
    return Cycle(
        replicas=replicas,
        pool={key: queues[key] for key in sorted(queues, key=lambda key: (key is None, key or 0))},
        admits=SlotAdmission({0: 999} if slots is None else slots),
        progress=Progress(published, published, 0, 0, 0, 0, 0, 4, 100),
        routing=routing,
    )


def routed(*arguments, **options):
    return [(placed.trajectory, placed.replica) for placed in WATERFALL.route(cycle(*arguments, **options))]


@pytest.mark.parametrize(("prompt", "most"), [(100, 78), (120, 77), (161, 76)])
def test_initial_trajectories_of_an_idle_replica(prompt, most):
    # About 100 in StaleFlow's figure 17; equation 3 with Table 4 and mu = 0.3 crosses the threshold here.
    placements = WATERFALL.route(cycle([replica("a")], *members(0, 300, tokens=prompt)))
    assert len(placements) == most
    assert {placed.reason.why for placed in placements} == {Why.CHOSEN}
    counted = [placed.reason.numbers for placed in placements]
    assert counted[0]["gain"] == pytest.approx(counted[0]["least"] / 0.3)  # the first has the ideal gain
    assert all(numbers["gain"] >= numbers["least"] for numbers in counted)


def test_a_length_that_is_unknown_is_assumed():
    assumed = dataclasses.replace(WATERFALL, prompt_tokens=161).route(cycle([replica("a")], *members(0, 300, tokens=0)))
    assert len(assumed) == len(WATERFALL.route(cycle([replica("a")], *members(0, 300, tokens=161))))


def test_equal_replicas_are_filled_evenly():
    assert routed([replica("b"), replica("a")], *members(0, 3)) == [("0.0", "a"), ("0.1", "b"), ("0.2", "a")]


def test_the_oldest_version_that_gains_enough_comes_first():
    fleet = [replica("new"), replica("old", 10, version=4)]
    assert routed(fleet, *members(0, 1, version=3)) == [("0.0", "old")]
    assert routed([replica("new"), replica("old", FULL, version=4)], *members(0, 1, version=3)) == [("0.0", "new")]
    assert routed(fleet, *members(0, 1, version=5)) == [("0.0", "new")]


def test_a_head_that_is_blocked_stops_everything_behind_it():
    fleet = [replica("old", version=4), replica("new", FULL)]
    assert routed(fleet, *members(0, 1, version=5), *members(1, 1)) == []
    assert routed(fleet, *members(1, 1)) == [("1.0", "old")]


def test_what_no_replica_serves_stops_nobody():
    """Its version is lost, or who serves it is lent, down or busy: others may be all that brings them back."""
    assert routed([replica("a")], *members(0, 1, version=3, exact=True), *members(1, 1)) == [("1.0", "a")]
    assert routed([replica("a")], *members(0, 1, version=6), *members(1, 1)) == [("1.0", "a")]


def test_a_group_has_the_version_of_its_first_trajectory():
    # One slot at version 4 and room for one trajectory there: the second may go on at version 5, which admits no new group.
    one_left = replica("old", 2, version=4, capacity=3)
    fleet = [one_left, replica("new")]
    assert routed(fleet, *members(0, 2), *members(1, 1), slots={4: 1}) == [("0.0", "old"), ("0.1", "new")]
    # Started at 5, nothing of it may go to version 4.
    fleet = [dataclasses.replace(one_left, open=False), replica("new", capacity=1)]
    assert routed(fleet, *members(0, 2)) == [("0.0", "new")]


def test_admission_counts_what_this_plan_has_started():
    # Asked again and again without being told, admission would let all of them start.
    assert routed([replica("a")], *members(0, 1), *members(1, 1), *members(2, 1), slots={5: 2}) == [
        ("0.0", "a"),
        ("1.0", "a"),
    ]


@pytest.mark.parametrize(
    "changes",
    [{"fresh": False}, {"pulling": True}, {"pinned": True}, {"version": None}, {"waiting": 1}, {"capacity": 0}],
)
def test_replicas_that_are_not_planned_with(changes):
    assert routed([dataclasses.replace(replica("a"), **changes)], *members(0, 1, version=4)) == []


def test_a_full_cache_takes_nothing():
    assert routed([replica("a", kv=0.9997)], *members(0, 1)) == []
    assert routed([replica("a", kv=0.9996)], *members(0, 1)) == [("0.0", "a")]


def pulled(*arguments, **options):
    return [sync.replica for sync in WhenUseful().pulls(cycle(*arguments, **options))]


def test_a_replica_pulls_when_it_could_be_given_nothing_otherwise():
    fleet = [replica("a", 3, version=4)]
    only_newest = {"slots": {5: 9}}
    (sync,) = WhenUseful().pulls(cycle(fleet, *members(0, 1), **only_newest))
    assert sync.reason == Reason(Why.USEFUL, numbers={"version": 5})
    assert pulled(fleet, *members(0, 1), slots={4: 9}) == []  # version 4 still does
    assert pulled(fleet, *members(0, 1), slots={6: 9}) == []  # version 5 would not do either
    assert pulled(fleet, **only_newest) == []  # nothing to run
    assert pulled([replica("a", 3)], *members(0, 1), **only_newest) == []  # not behind


def test_its_own_trajectories_are_no_reason_to_interrupt_them():
    # Back in the pool they come first and leave no room; as printed, an empty replica always has some.
    assert pulled([replica("a", FULL, version=4)], *members(0, 1), slots={5: 9}) == []
    assert pulled([replica("a", FULL // 2, version=4)], *members(0, 1), slots={5: 9}) == ["a"]


def test_a_replica_without_a_version_always_pulls():
    (sync,) = WhenUseful().pulls(cycle([replica("a", version=None)]))
    assert sync.reason == Reason(Why.BEHIND, numbers={"version": 5})
    assert pulled([replica("a", version=None)], published=-1) == []


@pytest.mark.parametrize("routing", [WATERFALL, LeastLoaded()])
@pytest.mark.parametrize("changes", [{"fresh": False}, {"pulling": True}, {"pinned": True}])
def test_replicas_that_must_not_pull(changes, routing):
    fleet = [replica("a", 3, version=4, **changes)]
    assert pulled(fleet, *members(0, 1), slots={5: 9}, routing=routing) == []
    assert pulled([replica("a", 3, version=4)], *members(0, 1), slots={5: 9}, routing=routing) == ["a"]


def test_interrupting_pulls_whatever_runs():
    fleet = [replica("a", 9, version=4), replica("b"), replica("c", version=None), replica("d", version=4, pinned=True)]
    pulls = [(sync.replica, sync.reason) for sync in Interrupting().pulls(cycle(fleet))]
    assert pulls == [
        ("a", Reason(Why.NEWER, numbers={"version": 5})),
        ("c", Reason(Why.BEHIND, numbers={"version": 5})),
    ]
    assert Interrupting().mixes_versions
    assert Interrupting().accepts(fleet[0], cycle(fleet).progress)


def plan(replicas, *pool, **options):
    return list(Migration(*TABLE_4, **options).plan(cycle(replicas, *pool)))


def test_excess_is_taken_from_the_tail_of_the_queue():
    busy = replica("a", 3, waiting=5)
    assert plan([busy]) == [Evict("a", ("a7", "a6"), Reason(Why.WAITING_TOO_LONG, numbers={"waiting": 5, "limit": 3}))]
    assert plan([busy], phi_wait=5) == []
    assert plan([dataclasses.replace(busy, pinned=True)]) == []
    assert plan([dataclasses.replace(busy, fresh=False)]) == []


def test_what_must_keep_its_version_is_only_taken_where_another_has_it():
    busy = replica("a", 3, waiting=5)
    exact = {name: dataclasses.replace(view, exact=True) for name, view in busy.trajectories.items()}
    busy = dataclasses.replace(busy, trajectories=exact)
    assert plan([busy]) == []
    assert plan([busy, replica("b", 2, version=6)]) == []
    assert [eviction.replica for eviction in plan([busy, replica("b", 2)])] == ["a"]


def test_a_replica_far_ahead_is_emptied():
    fleet = [replica("a", 12), replica("b", 2)]
    (eviction,) = plan(fleet)
    assert eviction.replica == "a"
    assert len(eviction.trajectories) == 12
    assert (eviction.reason.why, eviction.reason.who) == (Why.LOW_THROUGHPUT, "b")
    assert {name: round(rate) for name, rate in eviction.reason.numbers.items()} == {"here": 958, "there": 161}
    assert plan([replica("a", 9), replica("b", 2)]) == []  # less than five times
    assert plan(fleet, phi_throughput=7.0) == []
    assert plan([fleet[0], replica("b", 2, version=4)]) == []  # nobody else may go on with it


def test_who_waits_for_tools_is_not_behind():
    """It is as fast as the other once they answer; emptying the other would only move work to and fro."""
    busy = replica("a", 12)
    waits = replica("b", in_flight=12, in_environment=12)
    assert [eviction.replica for eviction in plan([busy, replica("b")])] == ["a"]
    assert plan([busy, waits]) == []
    few = replica("b", 2, in_flight=12, in_environment=10)
    assert [eviction.replica for eviction in plan([busy, replica("b", 2)])] == ["a"]
    assert plan([busy, few]) == []


def test_no_more_counts_as_coming_back_than_runs_at_once():
    busy = replica("a", 24)
    assert plan([busy, replica("b", in_flight=200, in_environment=200, max_running=24)]) == []
    (eviction,) = plan([busy, replica("b", in_flight=200, in_environment=200, max_running=3)])
    assert (eviction.replica, eviction.reason.who) == ("a", "b")


def test_nothing_is_split_where_nothing_runs():
    waiting = replica("a", in_flight=4, in_environment=4, trajectories=replica("a", 4).trajectories)
    assert plan([waiting, replica("b")]) == []


def test_a_replica_gets_no_more_than_its_engine_runs():
    """Else the excess waits in the engine, migration takes it away, and routing gives it again."""
    free = [replica("a", 30, max_running=32), replica("b", 5, capacity=4)]
    placed = routed(free, *members(0, 20))
    assert [name for _, name in placed] == ["a", "a"]
    assert len(routed([replica("a", 30)], *members(0, 20))) == 20


def test_beside_an_idle_replica():
    assert [eviction.replica for eviction in plan([replica("a", 2), replica("b")])] == ["a"]
    assert plan([replica("a", 1), replica("b")]) == []  # it would only trade places
    assert plan([replica("a", 2), replica("b")], *members(0, 1)) == []  # which the idle one can be given
    assert plan([replica("a"), replica("b")]) == []
    assert plan([replica("a", 2)]) == []


def test_a_small_decode_batch_is_not_split():
    """Two trajectories decode as fast on one replica as on two, if the cache costs nothing to read."""
    small = [replica("a", running=2), replica("b")]
    free = Migration(0.0, 0.01, 0.002, 0.002)
    assert list(free.plan(cycle(small))) == []
    crowded = [replica("a", running=8), replica("b")]
    assert [evict.replica for evict in free.plan(cycle(crowded))] == ["a"]


def test_when_migration_plans():
    assert Migration(*TABLE_4).due(11.0, 10.0, False)
    assert not Migration(*TABLE_4).due(10.9, 10.0, True)


def test_the_defaults_are_the_papers():
    policy = Migration(*TABLE_4)
    assert (WATERFALL.mu, policy.phi_wait, policy.phi_throughput) == (0.3, 3, 5.0)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: MarginalThroughput(*TABLE_4, mu=0.0), "mu=0.0"),
        (lambda: MarginalThroughput(*TABLE_4, mu=1.1), "mu=1.1"),
        (lambda: MarginalThroughput(*TABLE_4, prompt_tokens=-1), "prompt_tokens=-1"),
        (lambda: MarginalThroughput(1.0, 0.0, 1.0, 0.0), "k2=0.0 and k4=0.0"),
        (lambda: MarginalThroughput(-1.0, 1.0, 1.0, 1.0), "k1=-1.0"),
        (lambda: Migration(1.0, 0.0, 1.0, 0.0), "k2=0.0 and k4=0.0"),
        (lambda: Migration(*TABLE_4, phi_wait=-1), "phi_wait=-1"),
        (lambda: Migration(*TABLE_4, phi_throughput=0.5), "phi_throughput=0.5"),
        (lambda: Migration(*TABLE_4, period_s=0.0), "period_s=0.0"),
    ],
)
def test_options_that_make_no_sense(make, words):
    with pytest.raises(LoadError, match=words):
        make()


@pytest.mark.parametrize(
    ("group", "name", "policy"),
    [
        ("tailrace.routing", "marginal-throughput", MarginalThroughput),
        ("tailrace.sync", "when-useful", WhenUseful),
        ("tailrace.sync", "interrupting", Interrupting),
        ("tailrace.sync", "on-idle", OnIdle),
        ("tailrace.sync", "barrier", Barrier),
        ("tailrace.relocation", "migration", Migration),
    ],
)
def test_plugin_names(group, name, policy):
    assert load(group, name) is policy
