"""The paper's figures, and what the manager says to bad input."""

import copy
import math
from typing import Any

import pytest

from tailrace.contracts import TailraceError
from tailrace.staleness import (
    BufferState,
    DuplicateError,
    Entry,
    LimitError,
    NotReadyError,
    OutdatedForkError,
    RedundantError,
    StalenessBoundExceeded,
    StalenessManager,
    StateError,
    UnknownBufferError,
    UnknownEntryError,
    VersionError,
)


def filled(manager, count, version=0, prefix=""):
    return [manager.reserve(f"{prefix}{index}", version) for index in range(count)]


def keys(manager, buffer):
    return {(entry.key, entry.occupied) for entry in manager.entries(buffer)}


def test_reserve_takes_the_latest_buffer_and_occupy_the_earliest():
    """Figure 7, left."""
    manager = StalenessManager(bound=1, batch_size=2)
    assert filled(manager, 3) == [1, 1, 0]
    assert manager.occupy("0") == 0
    assert manager.entries(0) == [Entry("0", 0, True)] + [entry for entry in manager.entries(0) if not entry.occupied]
    # The reserved entry of buffer 0 moved to the place that was left in buffer 1.
    assert keys(manager, 0) == {("0", True)}
    assert keys(manager, 1) == {("1", False), ("2", False)}


def test_states():
    manager = StalenessManager(bound=1, batch_size=2)
    assert [manager.state(buffer) for buffer in (0, 1, 2)] == [BufferState.WAITING] * 3
    filled(manager, 4)
    assert [manager.state(buffer) for buffer in (0, 1)] == [BufferState.STUCK] * 2
    assert not manager.can_reserve(0)
    manager.occupy("0")
    manager.occupy("1")
    assert [manager.state(buffer) for buffer in (0, 1)] == [BufferState.READY, BufferState.STUCK]
    assert manager.ready()
    assert manager.consume() == ["0", "1"]
    assert manager.version == 1
    # Buffer 2 is new: version 0 may not be in it, version 1 may.
    assert not manager.can_reserve(0)
    assert manager.reserve("new", 1) == 2


def test_movement_repeats_to_exhaustion():
    """Figure 7, right: B moves to A's place, C to B's, and A occupies what C left."""
    manager = StalenessManager(bound=2, batch_size=1)
    assert manager.reserve("first", 0) == 2
    manager.occupy("first")
    manager.consume()
    assert manager.reserve("C", 0) == 2
    assert manager.reserve("B", 0) == 1
    assert manager.reserve("A", 1) == 3
    # Neither B nor C may be in buffer 3 (0 + 2 < 3): A's own entry is deleted, and no place opens before.
    assert manager.occupy("A") == 3
    manager.filter("A")
    assert manager.occupy("C") == 1
    assert keys(manager, 2) == {("B", False)}


def test_filter_moves_occupied_entries_forward():
    """Figure 8c."""
    manager = StalenessManager(bound=1, batch_size=2)
    filled(manager, 4)
    for key in "0123":
        manager.occupy(key)
    dropped = manager.entries(0)[0].key
    manager.filter(dropped)
    assert manager.ready()
    assert manager.state(1) is BufferState.WAITING
    assert len(manager) == 3


def test_batch_level_redundancy():
    """Figure 8b, left."""
    manager = StalenessManager(bound=0, batch_size=2, surplus=1)
    filled(manager, 3)
    manager.occupy("1")
    assert manager.surplus() == []
    manager.occupy("2")
    assert manager.state(0) is BufferState.READY
    assert manager.surplus() == ["0"]
    with pytest.raises(RedundantError, match="complete without it"):
        manager.occupy("0")
    assert sorted(manager.consume()) == ["1", "2"]
    assert len(manager) == 0


def test_a_redundant_entry_is_saved_by_a_place_in_a_later_buffer():
    manager = StalenessManager(bound=1, batch_size=1, surplus=1)
    assert filled(manager, 4) == [1, 1, 0, 0]
    manager.occupy("2")
    assert manager.surplus() == ["3"]
    manager.abort("0")
    assert manager.surplus() == []
    assert keys(manager, 1) == {("1", False), ("3", False)}


def test_in_flight_is_at_most_bound_plus_one_batches():
    """StaleFlow, section 4.2: what the buffers limit."""
    for bound in (0, 1, 3, 10):
        manager = StalenessManager(bound, 4)
        count = 0
        while manager.can_reserve(0):
            manager.reserve(count, 0)
            count += 1
        assert count == (bound + 1) * 4 == manager.capacity == len(manager)


def redundant_and_full():
    manager = StalenessManager(bound=1, batch_size=1, surplus=1, version=3)
    for name, version in (("a", 3), ("b", 3), ("c", 2), ("late", 2)):
        manager.reserve(name, version)
    manager.occupy("c")
    return manager


@pytest.mark.parametrize(
    ("error", "action", "found"),
    [
        (VersionError, lambda m: m.reserve("new", 4), "newer than the trainer's"),
        (VersionError, lambda m: m.reserve("new", -1), "negative"),
        (DuplicateError, lambda m: m.reserve("a", 3), "'a' is reserved in buffer 4"),
        (DuplicateError, lambda m: m.reserve("c", 3), "'c' is occupied in buffer 3"),
        (StalenessBoundExceeded, lambda m: m.reserve("new", 3), "no empty entry in buffers 3 to 4"),
        (StalenessBoundExceeded, lambda m: m.reserve("new", 0), "no empty entry"),
        (UnknownEntryError, lambda m: m.occupy("new"), "found no entry"),
        (UnknownEntryError, lambda m: m.occupy("c"), "found an occupied one"),
        (RedundantError, lambda m: m.occupy("late"), "complete without it"),
        (UnknownEntryError, lambda m: m.abort("c"), "found an occupied one"),
        (UnknownEntryError, lambda m: m.filter("a"), "found a reserved one"),
        (UnknownEntryError, lambda m: m.filter("new"), "found no entry"),
        (UnknownBufferError, lambda m: m.state(2), "which was consumed"),
        (UnknownBufferError, lambda m: m.entries(2), "which was consumed"),
        (DuplicateError, lambda m: m.reset(3, [Entry("x", 3, True), Entry("x", 3, True)]), "'x' twice"),
        (LimitError, lambda m: m.reset(-1, []), "version=-1"),
        (VersionError, lambda m: m.fork().take("new", 4), "the trainer's 3"),
        (DuplicateError, lambda m: m.fork().take("a", 3), "found an entry"),
        (StalenessBoundExceeded, lambda m: m.fork().take("new", 3), "empty entries"),
    ],
)
def test_bad_input_is_an_error_that_changes_nothing(error, action, found):
    manager = redundant_and_full()
    before = copy.deepcopy(manager.to_state())
    with pytest.raises(error, match=found) as raised:
        action(manager)
    assert isinstance(raised.value, TailraceError)
    assert manager.to_state() == before


def test_errors_say_in_what_state_the_manager_is():
    with pytest.raises(StalenessBoundExceeded) as raised:
        redundant_and_full().reserve("new", 3)
    assert "trainer at version 3, bound 1, buffers {3: 1 occupied + 1 reserved of 2 (ready), 4: " in str(raised.value)


def test_an_aborted_key_is_forgotten():
    manager = StalenessManager(bound=1, batch_size=1)
    manager.reserve("a", 0)
    manager.abort("a")
    with pytest.raises(UnknownEntryError):
        manager.occupy("a")
    manager.reserve("a", 0)


def test_consuming_what_is_not_ready():
    manager = StalenessManager(bound=1, batch_size=2)
    filled(manager, 2)
    manager.occupy("0")
    with pytest.raises(NotReadyError, match="found 1 occupied entries, expected 2"):
        manager.consume()
    assert manager.version == 0


@pytest.mark.parametrize(
    "limits", [{"bound": -1}, {"bound": 1.5}, {"bound": True}, {"batch_size": 0}, {"version": -1}, {"surplus": -1}]
)
def test_limits(limits):
    with pytest.raises(LimitError, match=next(iter(limits))):
        StalenessManager(**limits)


def test_a_fork_of_a_manager_that_changed_cannot_be_committed():
    manager = StalenessManager(bound=1, batch_size=2)
    fork = manager.fork()
    fork.take("a", 0)
    inner = fork.fork()
    inner.take("b", 0)
    manager.reserve("c", 0)
    for view in (fork, inner):
        with pytest.raises(OutdatedForkError, match="1 changes after the fork"):
            view.commit()
    assert len(manager) == 1


def test_committing_an_inner_fork_applies_what_was_taken_outside_it_before():
    manager = StalenessManager(bound=1, batch_size=2)
    outer = manager.fork()
    outer.take("a", 0)
    inner = outer.fork()
    inner.take("b", 0)
    outer.take("after", 0)
    assert inner.commit() == ["a", "b"]
    assert len(manager) == 2
    with pytest.raises(OutdatedForkError):
        outer.commit()


def test_reset_after_a_rollback_refuses_versions_that_are_no_more():
    manager = StalenessManager(bound=1, batch_size=2, version=5)
    kept = [Entry("a", 4, True), Entry("b", 3, False)]
    refused = manager.reset(4, [*kept, Entry("c", 5, True), Entry("d", 2, True)])
    assert refused == ["c", "d"]
    assert manager.version == 4
    assert sorted(entry.key for buffer in (4, 5) for entry in manager.entries(buffer)) == ["a", "b"]


def test_reset_prefers_complete_entries():
    manager = StalenessManager(bound=0, batch_size=1)
    assert manager.reset(2, [Entry("running", 2, False), Entry("complete", 2, True)]) == ["running"]
    assert manager.ready()


def good_state():
    return redundant_and_full().to_state()


@pytest.mark.parametrize(
    "spoil",
    [
        lambda state: state.pop("bound"),
        lambda state: state.update(bound=-1),
        lambda state: state.update(bound=2),
        lambda state: state["buffers"][0].append(["a", 3, False]),
        lambda state: state["buffers"][0].append(["x", 7, False]),
        lambda state: state["buffers"][0].append(["x"]),
        lambda state: state["buffers"][0].append(["x", 3, False]),
        lambda state: state["buffers"][1].pop() and state["buffers"][0].append(["x", 3, False]),
        lambda state: state["buffers"][1].append(["x", 2, False]),
        lambda state: state["buffers"].__setitem__(1, [["x", 3, True]]) or state["buffers"][0].clear(),
        lambda state: state["buffers"].reverse(),
        lambda state: state["buffers"].__setitem__(0, None),
        lambda state: state["buffers"].__setitem__(0, 7),
    ],
)
def test_a_state_that_no_manager_wrote(spoil):
    state = copy.deepcopy(good_state())
    StalenessManager.from_state(state)
    spoil(state)
    with pytest.raises(StateError, match="expected what"):
        StalenessManager.from_state(state)


def test_a_state_that_is_no_mapping():
    with pytest.raises(StateError):
        StalenessManager.from_state(None)


class Indexed:
    """A whole number that is no `int`, as those of numpy."""

    def __init__(self, value):
        self.value = value

    def __index__(self):
        return self.value


def test_a_version_may_be_any_whole_number_and_nothing_else():
    manager: Any = StalenessManager(bound=1, batch_size=1)
    zero = Indexed(0)
    assert manager.can_reserve(zero)
    assert manager.fork().allows(zero)
    assert manager.fork().take("a", zero) == 1
    assert manager.reserve("a", zero) == 1
    assert manager.entries(1)[0].version == 0
    fork = manager.fork()
    for version in ("0", 0.0, math.nan, None):
        for call in (
            manager.can_reserve,
            lambda given: manager.reserve("b", given),
            fork.allows,
            lambda given: fork.take("b", given),
        ):
            with pytest.raises(VersionError, match="expected a whole number"):
                call(version)
