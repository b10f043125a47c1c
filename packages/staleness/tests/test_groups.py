import copy
import json
import random

import pytest

from tailrace.staleness import (
    DuplicateError,
    GroupTracker,
    LimitError,
    NotReadyError,
    RedundantError,
    StalenessBoundExceeded,
    StalenessError,
    StalenessManager,
    StateError,
    UnknownEntryError,
    VersionError,
)


def tracker(bound=1, batch_size=1, needed=2, size=2, **limits):
    return GroupTracker(StalenessManager(bound, batch_size, **limits), needed=needed, size=size)


def test_one_entry_for_a_group_at_the_version_of_its_first_member():
    groups = tracker(version=3)
    assert groups.route("g", 0, 2) == 2
    assert groups.route("g", 1, 3) == 2
    assert groups.version("g") == 2
    assert len(groups.manager) == 1


def test_a_later_member_needs_a_replica_as_new_as_the_group():
    """Else the version of the group could fall after its entry was reserved, and break the bound."""
    groups = tracker(version=3)
    groups.route("g", 0, 3)
    assert not groups.can_route("g", 2)
    with pytest.raises(VersionError, match="replica of version 2, expected 3"):
        groups.route("g", 1, 2)
    assert groups.running("g") == [0]
    assert groups.can_route("g", 3)
    assert not groups.can_route("g", 4)


def test_partial_rollout_changes_nothing():
    groups = tracker(bound=1, batch_size=1, version=1)
    groups.route("g", 0, 0)
    before = groups.manager.to_state()
    assert groups.route("g", 0, 1) == 0
    assert groups.manager.to_state() == before


def test_group_level_redundancy():
    """Figure 8b, right: the group is complete with `needed` members, the rest are aborted."""
    groups = tracker(needed=2, size=3)
    for member in range(3):
        groups.route("g", member, 0)
    assert groups.finish("g", 2) == []
    assert not groups.manager.ready()
    assert groups.finish("g", 0) == [1]
    assert groups.manager.ready()
    assert groups.finished("g") == [2, 0]
    with pytest.raises(UnknownEntryError, match="expected it among them"):
        groups.finish("g", 1)
    assert groups.consume() == ({"g": [2, 0]}, [])
    assert "g" not in groups


def test_batch_level_redundancy_returns_members_to_abort():
    groups = tracker(bound=0, batch_size=1, surplus=1, needed=1, size=2)
    groups.route("fast", "f0", 0)
    groups.route("slow", "s0", 0)
    groups.route("slow", "s1", 0)
    groups.finish("fast", "f0")
    assert groups.surplus() == ["slow"]
    with pytest.raises(RedundantError):
        groups.finish("slow", "s0")
    assert groups.running("slow") == ["s0", "s1"]
    assert groups.consume() == ({"fast": ["f0"]}, ["s0", "s1"])
    assert "slow" not in groups


def test_redundancy_of_the_paper():
    """StaleFlow, appendix C: a ratio of 1/16 over 128 groups of 16, on either level."""
    by_batch = GroupTracker(StalenessManager(0, 128, surplus=128 // 16), needed=16)
    by_group = GroupTracker(StalenessManager(0, 128), needed=16, size=16 + 16 // 16)
    for groups, count in ((by_batch, 136), (by_group, 128)):
        started = 0
        while groups.can_route(started, 0):
            for member in range(groups.size):
                groups.route(started, member, 0)
            started += 1
        assert started == count
        assert sum(len(groups.running(group)) for group in range(started)) == 2176
        aborted = 0
        for group in range(128):
            for member in range(16):
                aborted += len(groups.finish(group, member))
        batch, late = groups.consume()
        assert len(batch) == 128
        assert all(len(members) == 16 for members in batch.values())
        assert aborted + len(late) == 128
    assert by_group.size == 17


def test_a_lost_member_may_be_routed_again():
    groups = tracker()
    groups.route("g", 0, 0)
    groups.route("g", 1, 0)
    groups.lose("g", 0)
    groups.finish("g", 1)
    groups.route("g", 0, 0)
    assert groups.finish("g", 0) == []
    assert groups.manager.ready()


def test_drop_aborts_or_filters():
    groups = tracker(needed=1, size=2, batch_size=2)
    groups.route("complete", 0, 0)
    groups.route("running", 0, 0)
    groups.finish("complete", 0)
    assert groups.drop("complete") == []
    assert groups.drop("running") == [0]
    assert len(groups.manager) == 0
    with pytest.raises(UnknownEntryError, match="no group 'running'"):
        groups.drop("running")


def test_mistakes():
    groups = tracker(bound=0, needed=1, size=2)
    groups.route("g", 0, 0)
    groups.route("g", 1, 0)
    with pytest.raises(DuplicateError, match="room among 2"):
        groups.route("g", 2, 0)
    with pytest.raises(StalenessBoundExceeded):
        groups.route("h", 0, 0)
    assert "h" not in groups
    with pytest.raises(UnknownEntryError):
        groups.lose("g", 5)
    groups.finish("g", 0)
    with pytest.raises(DuplicateError, match="found it complete"):
        groups.route("g", 0, 0)
    with pytest.raises(LimitError, match="size=1"):
        tracker(needed=2, size=1)


def seen(tracker):
    """All that a tracker answers."""
    groups = [group for group in range(300) if group in tracker]
    return (
        [(group, tracker.version(group), tracker.running(group), tracker.finished(group)) for group in groups],
        [tracker.can_route(group, version) for group in range(300) for version in range(tracker.manager.version + 1)],
        tracker.surplus(),
        tracker.manager.to_state(),
    )


def step(tracker, draws):
    """One call, as the draws say; what it returned or raised."""
    group, member = draws.randrange(300), draws.randrange(4)
    if draws.random() < 0.7 and (known := [group for group in range(300) if group in tracker]):
        group = draws.choice(known)
    call = draws.choice(["route", "route", "route", "finish", "finish", "lose", "drop", "consume"])
    arguments = {
        "route": (group, member, draws.randint(0, tracker.manager.version)),
        "finish": (group, member),
        "lose": (group, member),
        "drop": (group,),
        "consume": (),
    }[call]
    try:
        return call, getattr(tracker, call)(*arguments)
    except (StalenessError, StalenessBoundExceeded) as error:
        return call, type(error), str(error)


@pytest.mark.parametrize("seed", range(8))
def test_a_restored_tracker_goes_on_like_the_one_that_was_stored(seed):
    print(f"seed {seed}")
    draws = random.Random(seed)
    needed, size, bound = draws.randint(1, 3), 4, draws.randint(0, 2)
    groups = GroupTracker(
        StalenessManager(bound, draws.randint(1, 3), surplus=draws.randint(0, 1)), needed=needed, size=size
    )
    consumed = 0
    for _ in range(400):
        consumed += step(groups, draws)[:2] != ("consume", NotReadyError)
        if draws.random() < 0.05:
            restored = GroupTracker.from_state(json.loads(json.dumps(groups.to_state())))
            assert seen(restored) == seen(groups)
            again = random.Random(int(draws.random() * 2**32))
            other = copy.deepcopy(again)
            twin = copy.deepcopy(groups)
            assert [step(restored, again) for _ in range(30)] == [step(twin, other) for _ in range(30)]
            groups = GroupTracker.from_state(groups.to_state())
    assert consumed


def stored():
    groups = tracker(bound=2, batch_size=2, needed=2, size=3)
    for member in range(3):
        groups.route("full", member, 0)
        groups.route("going", member, 0)
    groups.finish("full", 1)
    groups.finish("full", 0)
    groups.finish("going", 2)
    groups.route("new", 0, 0)
    return groups.to_state()


@pytest.mark.parametrize(
    "spoil",
    [
        lambda state: state.pop("manager"),
        lambda state: state.pop("groups"),
        lambda state: state.update(needed=0),
        lambda state: state.update(needed=3),
        lambda state: state.update(size=1),
        lambda state: state.update(size="3"),
        lambda state: state["manager"].update(bound=-1),
        lambda state: state["groups"].pop(),
        lambda state: state["groups"].append(["unknown", [0], []]),
        lambda state: state["groups"].append(state["groups"][0]),
        lambda state: state["groups"].append(["short"]),
        lambda state: state["groups"].append([["a list"], [0], []]),
        lambda state: state["groups"][1][1].append(0),
        lambda state: state["groups"][1][1].append(2),
        lambda state: state["groups"][1][1].extend([7, 8]),
        lambda state: state["groups"][1][2].append(5),
        lambda state: state["groups"][0][2].append(5),
        lambda state: state["groups"][0][1].append(2),
        lambda state: state["groups"][0][2].pop(),
        lambda state: state["groups"][0].__setitem__(1, 3),
    ],
)
def test_a_state_that_no_tracker_wrote(spoil):
    GroupTracker.from_state(stored())
    state = json.loads(json.dumps(stored()))
    spoil(state)
    with pytest.raises(StateError, match="stored staleness state: found"):
        GroupTracker.from_state(state)


def test_a_state_that_is_nothing():
    for state in (None, 3, [], {}):
        with pytest.raises(StateError, match="GroupTracker"):
            GroupTracker.from_state(state)


def test_a_manager_that_knows_more_than_its_tracker_loses_no_batch():
    """The state after a restart that restored the manager alone."""
    groups = tracker(bound=1, batch_size=2, needed=1, size=1)
    for group in ("a", "b"):
        groups.route(group, 0, 0)
        groups.finish(group, 0)
    alone = GroupTracker(StalenessManager.from_state(groups.manager.to_state()), needed=1)
    assert not alone.can_route("a", 0)
    assert alone.can_route("c", 0)
    with pytest.raises(DuplicateError):
        alone.route("a", 0, 0)
    before = alone.to_state()
    with pytest.raises(UnknownEntryError, match="found no group 'a'"):
        alone.consume()
    assert alone.to_state() == before
    assert alone.manager.version == 0
