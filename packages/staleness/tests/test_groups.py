import pytest

from tailrace.staleness import (
    DuplicateError,
    GroupTracker,
    LimitError,
    RedundantError,
    StalenessBoundExceeded,
    StalenessManager,
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
