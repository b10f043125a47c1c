"""What the log says of members: who ought to run, what each may lack, and what nobody has answered."""

import pytest

from tailrace import contracts as c
from tailrace.runtime.executor.roster import Roster

STARTS = [c.Start(i, role, "r0" if role == "replica" else "0") for i, role in enumerate(
    ("data", "scorer", "trainer", "ranker", "environment", "replica"), 1
)]  # fmt: skip


@pytest.fixture
def roster():
    roster = Roster()
    roster.note([], STARTS, {})
    for start in STARTS:
        roster.note([c.Up(start.role, start.id, address="here", answers=start.seq)], [], {})
    return roster


def lacks(roster, role, id_="0"):
    return [command.seq for command in roster.members[role, id_].sent]


def waits(roster, role, id_="0"):
    return sorted(roster.members[role, id_].open)


def test_an_answer_to_a_command_stands_for_all_before_it(roster):
    steps = [
        c.Publish(10, 0, {"0": "here"}),
        c.Checkpoint(11, 0),
        c.Step(12, 1, (("0.0",),)),
        c.Publish(13, 1, {"0": "here"}),
    ]
    roster.note([], steps, {})
    assert lacks(roster, "trainer") == [10, 11, 12, 13]
    roster.note([c.Stepped(1, answers=12)], [], {})
    assert lacks(roster, "trainer") == [13]
    assert waits(roster, "trainer") == [11, 13]  # the newer version replaces the one that was not published


def test_what_one_rank_answers_alone_does_not_stand_for_the_others(roster):
    roster.note([], [c.Publish(10, 0, {"0": "here"}), c.Accumulate(11, 1, ("0.0",), update=False, cell=1)], {})
    roster.note([c.Published(0, 10), c.Accumulated(1, ("0.0",), answers=11, cell=1)], [], {})
    assert lacks(roster, "trainer") == [10, 11]
    assert waits(roster, "trainer") == []


def test_devices_that_change_hands_are_waited_for_and_a_cell_that_leaves_stands_for_no_other_rank(roster):
    roster.note([], [c.Lend(10, "r0", (0,)), c.Offload(11, 1), c.Return(12, "r0", 10)], {})
    assert (waits(roster, "replica", "r0"), waits(roster, "trainer")) == ([10, 12], [11])
    roster.note([c.Lent("r0", 10), c.Offloaded(1, 11)], [], {})
    assert (waits(roster, "replica", "r0"), waits(roster, "trainer")) == ([12], [])
    assert (lacks(roster, "replica", "r0"), lacks(roster, "trainer")) == (
        [10, 12],
        [11],
    )  # snapshots say what it has taken
    roster.note([c.Returned("r0", 12), c.Snapshot("r0", 0.0, 0, 0, 0, 0, last_seq=12)], [], {})
    assert (waits(roster, "replica", "r0"), lacks(roster, "replica", "r0")) == ([], [])


def test_a_version_that_was_to_be_revealed_is_revealed_again_and_not_waited_for(roster):
    roster.note([], [c.Publish(10, 1, {"0": "here"}, sealed=True), c.Checkpoint(11, 1)], {})
    roster.note([c.Durable(1, answers=11)], [c.Reveal(12, 1)], {})
    assert (lacks(roster, "trainer"), waits(roster, "trainer")) == ([12], [10])


def test_a_replica_has_taken_what_its_snapshot_shows(roster):
    commands = [
        c.Pull(10, "r0", 0, 0),
        c.Route(11, "r0", (), 10),
        c.Abort(12, ("0.0",), ("r0",)),
        c.Interrupt(13, "r0", (), 11),
    ]
    roster.note([], commands, {})
    roster.note([c.Snapshot("r0", 0.0, 0, 0, 0, 0, last_seq=11)], [], {})
    assert lacks(roster, "replica", "r0") == [12, 13]
    assert waits(roster, "replica", "r0") == [10]
    roster.note([c.Pulled("r0", 0, 10)], [], {})
    assert waits(roster, "replica", "r0") == []


def test_pieces_are_waited_for_until_each_is_answered_or_dropped(roster):
    roster.note([], [c.Route(9, "r0", ()), c.Score(10, ("a", "b", "c"))], {})
    roster.note([c.Scored("a", 1.0)], [c.Predict(11, (4, 5)), c.Call(12, "0", ("d", "e"))], {})  # in answer to nothing
    roster.note([c.Scored("b", 1.0, 10), c.Predicted(4, 9.0, 11), c.Turned("d", 1, 3, False, 0.1, 12)], [], {})
    assert [list(roster.members[role, "0"].missing.values()) for role in ("scorer", "ranker", "environment")] == [
        [{"a": None, "c": None}], [{5: None}], [{"e": None}],
    ]  # fmt: skip
    again = [c.Scored("b", 1.0, 10), c.Predicted(5, 9.0)]  # a second time, and to no command
    roster.note(again, [], {})
    assert [waits(roster, role) for role in ("scorer", "ranker", "environment")] == [[10], [11], [12]]
    roster.note([c.ScoringFailed("c", "broke", 10)], [c.Abort(13, ("a",)), c.Close(14, "0", ("e",))], {})
    assert [waits(roster, role) for role in ("scorer", "environment", "data")] == [[], [], [13]]
    assert lacks(roster, "environment") == [14]
    assert lacks(roster, "replica", "r0") == [9]
    assert [roster.members[role, "0"].missing for role in ("scorer", "environment")] == [{}, {}]
    roster.note([c.Scored("c", 1.0, 10), c.Turned("e", 1, 3, answers=12)], [], {})  # once more, when nobody waits
    roster.note([c.Discarded(13)], [], {})
    assert (waits(roster, "data"), lacks(roster, "data")) == ([], [])


def test_a_fresh_process_lacks_nothing_and_was_not_heard(roster):
    roster.note([], [c.Route(10, "r0", ()), c.Route(11, "r0", ())], {"replica r0": 9, "replica r01": 3})
    roster.note([], [c.Restart(12, "replica", "r0")], {})
    found = roster.members["replica", "r0"]
    assert (found.incarnation, found.up, found.sent) == (2, False, [])
    assert roster.heard == {"replica r01": 3}
    roster.note([c.Up("replica", "r0", answers=6)], [], {})
    assert not found.up  # of the one before
    roster.note([], [c.Resize(13, "r0", 2)], {})
    assert roster.members["replica", "r0"].incarnation == 3


def test_who_is_not_listed_is_told_nothing_and_who_is_does_not_start_twice(roster):
    roster.note([], [c.Start(10, "replica", "r0"), c.Finish(11), c.Stop(12, "replica", "r9")], {})
    assert roster.members["replica", "r0"].command.seq == 6
    assert [lacks(roster, role) for role in ("trainer", "data")] == [[], []]
    roster.note([c.Down("trainer", "0", "died")], [c.Publish(13, 1, {"0": "here"}), c.Route(14, "r9", ())], {})
    roster.note([c.Up("trainer", "0", answers=3), c.Up("replica", "r9", answers=9)], [], {})
    assert {("trainer", "0"), ("replica", "r9")}.isdisjoint(roster.members)


def test_who_is_down_is_not_listed_and_counts_on(roster):
    roster.note([c.Down("scorer", "0", "died")], [c.Score(10, ("a",))], {})
    assert ("scorer", "0") not in roster.members
    roster.note([], [c.Restart(11, "scorer", "0")], {})
    assert roster.members["scorer", "0"].incarnation == 2


def test_after_a_resumption_every_process_is_new(roster):
    roster.note([c.Resumed()], [c.Restart(20, "data", "0")], {})
    assert {key: found.incarnation for key, found in roster.members.items()} == {("data", "0"): 1}
