"""Replicas alone: who may be given work, what snapshots say, and what leaves with whom."""

import dataclasses
from typing import Any

import pytest

from tailrace.contracts import Health, Interrupted, Purpose, Snapshot
from tailrace.controller.errors import ControllerError
from tailrace.controller.fleet import EVICTION, FOR_PULL, MOVE, Assigned, Replicas
from tailrace.controller.members import Members
from tailrace.controller.trajectories import TrajectoryState


def seen(state, generated) -> Any:
    """Stands for a view."""
    return state.id, generated


def fleet(*names, follows=False):
    members, found = Members(), Replicas(seen, follows)
    for name in names:
        state = found.add(members.add("replica", name), 8)
        state.member.health, state.version = Health.UP, 3
    return found


def states(*names, purpose=Purpose.TRAIN):
    return [TrajectoryState(name, 0, 0, purpose, "", 0) for name in names]


def snapshot(name, running=0, waiting=0, *, last_seq=99, kv=0.0, **more):
    return Snapshot(name, kv, running, waiting, 0, 3, last_seq, **more)


@pytest.mark.parametrize(
    ("field", "value"),
    [("version", None), ("pulling", 4), ("moving_out", True), ("lent", True), ("health", Health.STOPPING)],
)
def test_one_is_given_work_while_nothing_speaks_against_it(field, value):
    replica = fleet("r0").replicas["r0"]
    assert replica.serves is True
    setattr(replica.member if field == "health" else replica, field, value)
    assert replica.serves is False
    assert replica.view(lambda view: True).pulling is (field in ("pulling", "moving_out"))


def test_who_is_up_and_has_its_devices():
    found = fleet("r0", "r1", "r2")
    found.replicas["r0"].lent = True
    found.replicas["r1"].member.health = Health.STARTING
    assert [replica.id for replica in found.up()] == ["r2"]
    with pytest.raises(ControllerError, match="found replica 'r9', expected one that was started: r0, r1, r2"):
        found.replicas["r9"]


def test_one_that_was_emptied_waits_for_what_is_newer_than_it_has():
    found = fleet("r0")
    replica = found.replicas["r0"]
    assert not replica.waits_for(4)
    found.routed(replica, states("0.0", "0.1"), evaluations=0)
    replica.moving_out = True
    replica.left("0.0", evaluation=False)
    assert (replica.moving_out, replica.released) == (True, False)
    replica.left("0.1", evaluation=False)
    assert (replica.moving_out, replica.released) == (False, True)
    assert [replica.waits_for(version) for version in (3, 4)] == [False, True]
    replica.version = None
    assert not replica.waits_for(4)
    replica.version = 3
    found.routed(replica, states("1.0"), evaluations=0)
    assert not replica.waits_for(4)  # it has work again


def test_a_snapshot_that_knows_everything_shows_what_does_not_add_up():
    found = fleet("r0")
    replica = found.replicas["r0"]
    found.routed(replica, states("0.0", "0.1"), evaluations=0)
    assert found.commanded(replica, 7) == 0
    found.observed(snapshot("r0", 5, last_seq=6), 1.0)
    assert (found.contradictions, replica.fresh) == (0, False)  # it does not know of the last command yet
    found.observed(snapshot("r0", 1, 1, last_seq=7), 2.0)
    assert (found.contradictions, replica.fresh) == (0, True)
    found.observed(snapshot("r0", 1, last_seq=7), 2.0)
    assert found.contradictions == 1
    replica.aborted = 1
    found.observed(snapshot("r0", 3, last_seq=7), 2.0)
    assert found.contradictions == 1  # an abort that it has not carried out
    found.observed(snapshot("r0", 2, last_seq=7), 2.0)
    assert replica.aborted == 0
    found.observed(snapshot("r0", 3, last_seq=7), 2.0)
    assert found.contradictions == 2
    assert found.commanded(replica, 9) == 7
    assert not replica.fresh


def test_a_snapshot_says_how_busy_one_is():
    found = fleet("r0", "r1")
    replica = found.replicas["r0"]
    found.observed(
        snapshot("r0", 2, 1, kv=0.5, tokens_per_s=9.0, preemptions=2, kv_capacity_tokens=70, max_running=6), 4.0
    )
    found.observed(
        snapshot("r0", 1, 0, kv=0.25, tokens_per_s=0.0, preemptions=3, kv_capacity_tokens=70, max_running=6), 5.0
    )
    assert (replica.running, replica.waiting, replica.kv, replica.kv_peak) == (1, 0, 0.25, 0.5)
    assert (replica.moved_s, replica.preemptions, replica.preempted) == (4.0, 3, 3)
    assert (replica.kv_capacity_tokens, replica.max_running, replica.kv_before) == (70, 6, 0.0)
    found.sampled()
    assert replica.kv_before == 0.25
    found.routed(replica, states("0.0"), evaluations=0)
    assert replica.kv_peak == 0.25  # it starts anew
    replica.reset()
    assert (replica.preemptions, replica.preempted, replica.kv, replica.running, replica.version) == (
        0,
        3,
        0.0,
        0,
        None,
    )
    found.observed(snapshot("r0", preemptions=2), 6.0)
    assert replica.preempted == 5  # of all its processes
    replica.member.health = Health.STARTING
    found.observed(snapshot("r0", 7), 7.0)
    assert replica.running == 0
    found.observed(snapshot("r9", 7), 7.0)  # it is gone for good


def test_what_runs_shares_the_tokens_since_the_last_snapshot():
    found = fleet("r0", follows=True)
    found.routed(found.replicas["r0"], states("0.0"), evaluations=0)
    found.observed(snapshot("r0", 4, tokens_per_s=10.0), 1.0)
    assert found.replicas["r0"].assigned.generated == 0.0
    found.observed(snapshot("r0", 2, tokens_per_s=12.0), 3.0)  # 3 ran between, in the mean
    assert found.replicas["r0"].assigned["0.0"] == ("0.0", 8)
    found.observed(snapshot("r0", 0, tokens_per_s=4.0), 4.0)  # one ran between, in the mean
    assert found.replicas["r0"].assigned.generated == 12.0
    found.observed(snapshot("r0", 0, tokens_per_s=4.0), 5.0)  # nothing ran
    found.observed(snapshot("r0", 1, tokens_per_s=4.0), 6.0)  # half of one: it had it all
    assert found.replicas["r0"].assigned.generated == 16.0
    found = fleet("r0")
    found.observed(snapshot("r0", 4, tokens_per_s=10.0), 1.0)
    found.observed(snapshot("r0", 4, tokens_per_s=10.0), 3.0)
    assert found.replicas["r0"].assigned.generated == 0.0


def test_interruptions_count_by_what_they_were_for_and_once_for_each_command():
    found = fleet("r0")
    replica = found.replicas["r0"]
    found.routed(replica, [*states("0.0", "0.1", "0.2"), *states("e1.greedy.0", purpose=Purpose.EVAL)], evaluations=1)
    replica.asked = {1: MOVE, 2: FOR_PULL, 4: FOR_PULL, 3: EVICTION}
    for name, answers in (("0.0", 1), ("0.1", 1), ("0.2", 3), ("e1.greedy.0", 2), ("0.7", None), ("0.8", 4)):
        found.interrupted(Interrupted("r0", name, 5, answers), evaluation=name.startswith("e"))
    assert (found.moves, found.evictions, found.interrupting_pulls) == (1, 1, 2)
    assert (len(replica.assigned), replica.evaluating, replica.asked) == (0, 0, {3: EVICTION})


def test_what_is_in_environments_comes_back_to_its_home():
    found = fleet("r0", "r1")
    first, second = found.replicas.values()
    train, held_out = states("0.0")[0], states("e1.greedy.0", purpose=Purpose.EVAL)[0]
    for state in (train, held_out):
        first.awaits(state)
    assert (first.in_flight, first.evaluating, first.view(lambda view: True).pinned) == (2, 1, True)
    assert first.evaluating == 1  # the one that is held out
    first.awaits_no_more(train)
    assert first.evaluating == 1
    first.awaits(train)
    first.hands_over(second)
    assert (first.in_flight, first.evaluating, second.in_flight, second.evaluating) == (0, 0, 2, 1)
    assert found.comes_back(train) == "r1"
    assert list(second.away) == ["e1.greedy.0"]
    assert found.comes_back(train) is None
    second.reset()
    assert (held_out.home, second.away, second.evaluating) == (None, {}, 0)
    assert found.comes_back(held_out) is None


KEPT = {"id", "capacity", "member", "assigned", "away", "preempted", "failed_pulls", "pulls_from_s", "devices", "cells"}
KEPT |= {"kept", "cached_tokens", "emptied", "filled", "differed", "moved_s", "kv_capacity_tokens", "max_running"}


def test_a_fresh_process_has_nothing_of_the_one_before():
    found = fleet("r0", "r1")
    replica, fresh = found.replicas.values()
    found.routed(replica, states("0.0"), evaluations=1)
    replica.assigned.advanced(4.0)
    replica.awaits(states("0.1")[0])
    for field in dataclasses.fields(replica):
        before = getattr(replica, field.name)
        if field.name in KEPT:
            continue
        dirty = {bool: True, dict: {1: MOVE}}.get(type(before), 7)
        setattr(replica, field.name, dirty)
    replica.reset()
    fresh.version = None
    for field in dataclasses.fields(replica):
        if field.name not in KEPT:
            assert getattr(replica, field.name) == getattr(fresh, field.name), field.name
    assert (list(replica.assigned), replica.assigned.generated, replica.away) == ([], 0.0, {})


def test_views_are_kept_until_something_changes():
    made = []

    def view(state, generated) -> Any:
        made.append(state.id)
        return state.id, generated

    assigned = Assigned(view)
    assigned.add(states("0.0", "0.1"))
    assert ("0.0" in assigned, "0.2" in assigned, list(assigned), len(assigned), made) == (
        True,
        False,
        ["0.0", "0.1"],
        2,
        [],
    )
    assert list(assigned.values()) == [("0.0", 0), ("0.1", 0)]
    assert dict(assigned.items()) == {"0.0": ("0.0", 0), "0.1": ("0.1", 0)}
    assert made == ["0.0", "0.1"]
    assigned.add(states("0.2"))
    assert assigned["0.2"] == ("0.2", 0)
    assigned.advanced(0.0)
    assert (made, assigned["0.0"]) == (["0.0", "0.1", "0.2"], ("0.0", 0))
    assigned.advanced(0.5)
    assigned.advanced(0.5)
    assert assigned["0.0"] == ("0.0", 1)
    assert len(made) == 6
    assigned.outdated()
    assert (assigned["0.1"], len(made)) == (("0.1", 1), 9)


def test_what_leaves_is_seen_no_more():
    found = fleet("r0")
    replica = found.replicas["r0"]
    found.routed(replica, states("0.0", "0.1"), evaluations=0)
    assert set(replica.assigned.items()) == {("0.0", ("0.0", 0)), ("0.1", ("0.1", 0))}
    replica.left("0.0", evaluation=False)
    replica.left("0.7", evaluation=True)
    assert set(replica.assigned.items()) == {("0.1", ("0.1", 0))}
    assert replica.evaluating == 0
    replica.left("0.1", evaluation=False)
    assert not replica.released  # nobody was emptying it


def test_a_view_says_how_full_one_is_and_whether_it_takes_what_is_new():
    replica = fleet("r0").replicas["r0"]
    replica.assigned.add(states("0.0"))
    replica.incoming = 3
    replica.awaits(states("0.1")[0])
    replica.awaits(states("0.2")[0])
    view = replica.view(lambda view: view.in_flight < 6)
    assert (view.in_flight, view.held, view.capacity, view.in_environment, view.pinned, view.open) == (
        6,
        4,
        8,
        2,
        False,
        False,
    )
    assert replica.in_flight == 6
    assert replica.view(lambda view: True).open is True
