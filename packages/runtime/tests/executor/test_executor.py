"""The executor by itself: what goes where, in which order, what is waited for, and whose word counts."""

import dataclasses
import re
from concurrent.futures import Future
from pathlib import Path

import pytest
from scripted_host import Driven

from tailrace import contracts as c
from tailrace.faulttol import FaultKind, parse_fault
from tailrace.runtime.errors import (
    CheckpointUnusableError,
    DeadlineError,
    RunFailedError,
    StaleEpochError,
    SupersededError,
)
from tailrace.runtime.executor.command_deadlines import _Training
from tailrace.runtime.executor.doors import Ready
from tailrace.runtime.executor.seam import MemberDeadError, MemberStart

EVERYBODY = (("data", "0"), ("scorer", "0"), ("relay", "0"), ("trainer", "0"), ("replica", "r0"), ("replica", "r1"))


@pytest.fixture
def run():
    return Driven()


def route(seq, replica="r0"):
    return c.Route(seq, replica, (c.TrajectoryRef(f"{seq}.0", 0, 0),))


# ---- members --------------------------------------------------------------------------------------------------------


def test_a_member_is_told_what_it_is_and_where_it_may_stand(run):
    place = c.Place(1, ("m9",))
    run.give(c.Start(1, "replica", "r0", place), c.Start(2, "relay", "1", place), c.Start(3, "trainer", "0"))
    assert [member.place for member in run.host.spawned] == [place, place, c.Place()]
    assert run.member("replica", "r0").arguments == {
        "start": MemberStart("r0", 1, "token", "test-r0", "caller of data 0"),
    }  # fmt: skip
    assert run.member("relay", "1").arguments == {"start": MemberStart("1", 1, "token", "test-1")}
    assert run.member("trainer").calls[0][:2] == ("ready", (None,))


def test_it_is_up_when_it_says_so_and_what_it_says_is_in_the_event(run):
    run.host.comes_up = False
    run.give(c.Start(7, "relay", "0"))
    assert run.controller.news() == []
    run.member("relay").under_way("ready")[0][1].set_result(Ready(address="here"))
    run.settle()
    assert run.controller.news() == [c.Up("relay", "0", machine="m0", address="here", answers=7)]


def test_one_that_does_not_come_up_in_time_is_down(run):
    run.host.comes_up = False
    run.give(c.Start(7, "replica", "r0"))
    run.pass_time(19.0)
    assert run.controller.news() == []
    run.pass_time(2.0)
    assert run.controller.news() == [c.Down("replica", "r0", "waited 20 s for replica r0 to come up", c.Cause.SILENT)]
    assert run.member("replica", "r0").killed


def test_a_fresh_one_takes_the_place_of_what_is_left(run):
    (old,) = run.up(("trainer", "0"))
    run.give(c.Restart(8, "trainer", "0", version=5))
    run.settle()
    new = run.member("trainer")
    assert old.killed
    assert not new.killed
    assert (new.incarnation, new.calls[0][:2]) == (2, ("ready", (5,)))
    assert run.controller.news() == [c.Up("trainer", "0", machine="m0", answers=8)]
    for _, future in old.under_way("events"):
        future.set_exception(MemberDeadError("gone"))
    run.settle()
    assert run.controller.news() == []  # of one that is gone already, nothing is heard


def test_what_ranks_serve_otherwise_than_told_is_said_once(run):
    run.host.comes_up = False
    run.give(c.Start(1, "trainer", "0"))
    said = Ready(notes=("half of it", "half of it", "a line\nof two"))
    run.member("trainer").under_way("ready")[0][1].set_result(said)
    run.settle()
    (up,) = run.controller.news()
    assert up.notes == ("half of it", "a line\\nof two")


def test_the_word_of_one_that_is_gone_does_not_count(run):
    (old,) = run.up(("replica", "r0"))
    poll = old.under_way("events")[0][1]
    run.give(c.Restart(8, "replica", "r0"))
    run.settle()
    run.controller.news()
    poll.set_result((1, [c.Finished("r0", "1.0", 3)]))
    run.settle()
    assert run.controller.news() == []


def test_one_that_stayed_up_is_taken_over(run):
    (trainer,) = run.up(("trainer", "0"))
    run.give(c.Start(1, "trainer", "0"))
    run.settle()
    assert run.controller.news() == [c.Up("trainer", "0", machine="m0", answers=1)]
    assert run.member("trainer") is trainer
    assert ("adopt", (Path("x"),)) in [call[:2] for call in trainer.calls]


def test_one_that_is_told_to_stop_tidies_up_first(run):
    (member,) = run.up(("replica", "r0"))
    run.give(c.Stop(8, "replica", "r0"), route(9))
    assert not member.killed
    assert member.told() == []
    member.under_way("close")[0][1].set_result(None)
    run.settle()
    assert run.controller.news() == [c.Down("replica", "r0", "it was told to stop", c.Cause.STOPPED)]
    assert member.killed


def test_one_that_does_not_get_ready_to_stop_is_ended(run):
    (member,) = run.up(("replica", "r0"))
    run.give(c.Stop(8, "replica", "r0"))
    run.pass_time(4.0)
    assert member.killed
    assert run.controller.news() == [c.Down("replica", "r0", "it was told to stop", c.Cause.STOPPED)]


# ---- commands -------------------------------------------------------------------------------------------------------


def test_one_call_at_a_time_so_that_order_is_kept(run):
    (member,) = run.up(("replica", "r0"))
    run.give(route(1), route(2))
    run.give(route(3))
    run.give(route(4))
    assert [[command.seq for command in call] for call in member.told()] == [[1, 2]]
    member.takes()
    run.settle()
    assert [[command.seq for command in call] for call in member.told()] == [[1, 2], [3, 4]]


def test_what_is_given_to_one_that_starts_waits_until_it_is_up(run):
    run.host.comes_up = False
    run.give(c.Start(7, "replica", "r0"), route(8))
    member = run.member("replica", "r0")
    assert member.told() == []
    member.under_way("ready")[0][1].set_result(Ready())
    run.settle()
    assert [[command.seq for command in call] for call in member.told()] == [[8]]


def test_what_is_dropped_leaves_everywhere(run):
    data, scorer, relay, trainer, r0, r1 = run.up(*EVERYBODY)
    abort = c.Abort(5, ("1.0",), ("r1",))
    run.give(abort)
    assert [member.told() for member in (data, scorer, r1)] == [[[abort]]] * 3
    assert [member.told() for member in (relay, trainer, r0)] == [[], [], []]


def test_a_command_to_one_that_is_gone_goes_to_nobody(run):
    (member,) = run.up(("replica", "r0"))
    member.breaks(MemberDeadError("gone"))
    run.controller.next = [route(3)]
    run.settle()
    assert member.told() == []
    assert run.controller.news() == [c.Down("replica", "r0", "gone", c.Cause.DIED)]


def test_every_rank_of_a_trainer_hears_the_same_and_they_end_together():
    run = Driven(ranks=2)
    run.give(c.Start(1, "trainer", "0"))
    run.settle()
    first, second = run.member("trainer"), run.member("trainer", "0.1")
    assert [member.arguments["start"].rank for member in (first, second)] == [0, 1]
    step = c.Step(2, 1, (("0.0",),))
    run.give(step)
    assert first.told() == second.told() == [[step]]
    run.controller.news()
    second.breaks(ZeroDivisionError("in a collective\nand more"))
    run.settle()
    assert run.controller.news() == [c.Down("trainer", "0", "ZeroDivisionError: in a collective", c.Cause.BROKE)]
    assert first.killed
    assert second.killed


# ---- what is waited for ---------------------------------------------------------------------------------------------

LATE = [
    (c.Step(3, 1, (("0.0",),)), "trainer", 30, "trainer 0 to train version 1", c.Stepped(1, answers=3)),
    (c.Accumulate(3, 1, ("0.0",)), "trainer", 30, "trainer 0 to train a part of version 1", c.Accumulated(1, (), answers=3)),
    (c.Accumulate(3, 1, ("0.0",), False, 1), "trainer", 30, "cell 1 of trainer 0 to add gradients of version 1",
     c.Accumulated(1, (), answers=3, cell=1)),
    (c.Publish(3, 1, {"0": "a"}), "trainer", 40, "version 1 to be published", c.Published(1, 3)),
    (c.Checkpoint(3, 1), "trainer", 85, "more of the checkpoint of version 1 to be written", c.Durable(1, 3)),
    (c.Pull(3, "r0", 1, 0, ("a",)), "replica", 50, "replica r0 to pull version 1", c.Pulled("r0", 1, 3)),
    (c.Pull(3, "r0", 1, 0, ("a",)), "replica", 50, "replica r0 to pull version 1", c.PullFailed("r0", 1, "torn", 3)),
    (c.Lend(3, "r0", (0,), 0), "replica", 55, "replica r0 to leave its devices", c.Lent("r0", 3)),
    (c.Return(3, "r0", 0), "replica", 55, "replica r0 to take its devices back", c.Returned("r0", 3)),
    (c.Offload(3, 0), "trainer", 95, "cell 0 of trainer 0 to leave its devices", c.Offloaded(0, 3)),
    (c.Abort(3, ("1.0",)), "data", 60, "the store to delete dropped trajectories", c.Discarded(3)),
    (c.Score(3, ("1.0",)), "scorer", 60, "trajectories to be scored", c.Scored("1.0", 1.0, 3)),
    (c.Score(3, ("1.0",)), "scorer", 60, "trajectories to be scored", c.ScoringFailed("1.0", "broke", 3)),
    (c.Predict(3, (7,)), "ranker", 70, "lengths to be predicted", c.Predicted(7, 200.0, 3)),
    (c.Predict(3, (7,)), "ranker", 70, "lengths to be predicted", c.PredictionFailed(7, "found nan tokens", 3)),
    (c.Call(3, "0", ("1.0",)), "environment", 80, "environment 0 to answer turns", c.Turned("1.0", 1, 9, answers=3)),
    (c.Call(3, "0", ("1.0",)), "environment", 80, "environment 0 to answer turns", c.CallFailed("1.0", "nonsense", 3)),
]  # fmt: skip


@pytest.mark.parametrize(("command", "role", "limit_s", "what", "answer"), LATE)
def test_every_command_has_a_deadline_and_its_answer_ends_it(run, command, role, limit_s, what, answer):
    everybody = (*EVERYBODY, ("ranker", "0"), ("environment", "0"))
    members = dict(zip(everybody, run.up(*everybody), strict=True))
    member = members[role, "r0" if role == "replica" else "0"]
    run.give(command)
    for each in members.values():
        each.takes()
    run.pass_time(2.0)
    assert what in [wait["for"] for wait in run.executor.visible()["waits"]]
    member.says(answer)
    run.settle()
    assert answer in run.controller.news()
    run.pass_time(100.0)
    assert run.controller.news() == []


@pytest.mark.parametrize(("command", "role", "limit_s", "what", "answer"), LATE)
def test_one_that_lives_and_does_not_answer_in_time_is_down(run, command, role, limit_s, what, answer):
    everybody = (*EVERYBODY, ("ranker", "0"), ("environment", "0"))
    members = dict(zip(everybody, run.up(*everybody), strict=True))
    run.give(command)
    for each in members.values():
        each.takes()
    run.pass_time(limit_s - 1.0)
    assert run.controller.news() == []
    run.pass_time(2.0)
    name = "r0" if role == "replica" else "0"
    (down,) = run.controller.news()
    said = f"waited {limit_s} s for {what}"
    if type(command) in (c.Step, c.Accumulate):
        said += f"; no micro-batch was seen to end; the deadline is {limit_s} s (deadlines.step_s)"
    assert down == c.Down(role, name, said, c.Cause.SILENT)


def test_a_checkpoint_is_waited_for_while_bytes_of_it_are_written(run):
    """The deadline of 85 s begins anew with each `Saving`, of this checkpoint alone."""
    (trainer,) = run.up(("trainer", "0"))
    run.give(c.Checkpoint(3, 1))
    trainer.takes()
    for nbytes in range(1, 5):
        run.pass_time(60.0)
        trainer.says(c.Saving(1, 3, nbytes))
        run.settle()
        assert run.controller.news() == [c.Saving(1, 3, nbytes)]
    run.pass_time(60.0)
    trainer.says(c.Saving(0, 2, 9))
    run.settle()
    assert run.controller.news() == [c.Saving(0, 2, 9)]
    run.pass_time(30.0)
    (down,) = run.controller.news()
    assert (down.role, down.cause) == ("trainer", c.Cause.SILENT)
    assert down.reason.endswith("s for more of the checkpoint of version 1 to be written")


def test_what_the_trainer_before_was_told_to_leave_is_not_waited_for_with_a_checkpoint(run):
    (before,) = run.up(("trainer", "0"))
    run.give(c.Offload(3, 0))
    before.breaks(MemberDeadError("killed"))
    run.settle()
    (trainer,) = run.up(("trainer", "0"))
    run.give(c.Checkpoint(4, 1))
    trainer.takes()
    trainer.says(c.Saving(1, 4, 7))
    run.settle()
    assert run.controller.news() == [c.Saving(1, 4, 7)]


def test_a_checkpoint_that_waits_for_the_one_before_is_not_late(run):
    """The trainer writes one after the other: the deadline of 85 s counts from the last news of any of them."""
    (trainer,) = run.up(("trainer", "0"))
    for command, passed_s in ((c.Checkpoint(3, 1), 60.0), (c.Checkpoint(4, 2), 1.0)):
        run.give(command)
        trainer.takes()
        run.pass_time(passed_s)
    for event in (c.Saving(1, 3, 7), c.Saving(1, 3, 8), c.Durable(1, answers=3), c.Saving(2, 4, 1)):
        trainer.says(event)
        run.settle()
        assert run.controller.news() == [event]
        run.pass_time(60.0)
    assert run.controller.news() == []
    run.pass_time(30.0)
    (down,) = run.controller.news()
    assert (down.role, down.cause) == ("trainer", c.Cause.SILENT)


def _late_step(run, *activities, longest_s=0.0):
    """The reason of a trainer that is given a step and misses its deadline, 30 s, after it said this at these seconds of it."""
    (trainer,) = run.up(("trainer", "0"))
    trainer.says(c.Activity("trainer", "0", "idle", 7))
    run.settle()
    if longest_s:
        run.give(c.Step(8, 1, (("0.0",),)))
        trainer.takes()
        run.pass_time(longest_s)
        trainer.says(c.Stepped(1, {}, answers=8))
        run.settle()
    run.give(c.Step(9, 2, (("1.0",),)))
    trainer.takes()
    run.controller.news()
    passed = 0.0
    for at_s, progress, share in activities:
        run.pass_time(at_s - passed)
        passed = at_s
        trainer.says(c.Activity("trainer", "0", "training", progress, share=share))
        run.settle()
    assert not [event for event in run.controller.news() if isinstance(event, c.Down)]
    run.pass_time(31.0 - passed)
    (down,) = [event for event in run.controller.news() if isinstance(event, c.Down)]
    assert down.cause is c.Cause.SILENT
    return down.reason


def test_a_deadline_that_a_healthy_step_exceeds_says_what_the_step_needs_and_which_key_to_raise(run):
    reason = _late_step(run, (5.0, 7, 0.0), (10.0, 9, 0.1), (20.0, 11, 0.2), (25.0, 12, 0.25))
    assert reason.startswith("waited 30 s for trainer 0 to train version 2; it went on all the while, 25% were done: ")
    needed = int(re.search(r"this step needs about (\d+) s", reason)[1])
    assert abs(needed - 100) <= 4
    assert reason.endswith("the deadline is 30 s (deadlines.step_s): raise it")


def test_a_step_whose_trainer_cannot_say_how_far_it_is_needs_more_than_it_had(run):
    reason = _late_step(run, (5.0, 7, 0.0), (20.0, 11, 0.0))
    assert (
        "it went on all the while: this step needs more than 30 s, the deadline is 30 s (deadlines.step_s): raise it"
        in reason
    )


def test_a_step_that_did_nothing_is_not_told_to_get_more_time(run):
    reason = _late_step(run, (5.0, 7, 0.0), (20.0, 7, 0.0), longest_s=4.0)
    assert "raise" not in reason
    assert reason.endswith(
        "no micro-batch was seen to end; the deadline is 30 s (deadlines.step_s), the longest step so far took 4 s"
    )


@pytest.mark.parametrize(
    ("limit_s", "moved_s", "still_s"),
    [(400.0, 300.0, 0), (400.0, 299.0, 101), (400.0, 310.0, 0), (100.0, 40.0, 0), (100.0, 39.0, 61)],
)
def test_a_step_that_stood_still_at_its_end_says_for_how_long(limit_s, moved_s, still_s):
    training = _Training(0.0, 3, moved_s)
    said = str(training.late(DeadlineError("waited"), limit_s, 0.0, limit_s))
    assert ("it went on all the while" in said) is (still_s == 0)
    assert (f"nothing went on for the last {still_s} s; " in said) is bool(still_s)


def test_what_a_trainer_says_is_of_its_own_step_and_not_of_the_one_that_its_predecessor_died_in(run):
    (trainer,) = run.up(("trainer", "0"))
    run.give(c.Step(8, 1, (("0.0",),)))
    trainer.takes()
    trainer.breaks(MemberDeadError("gone"))
    run.settle()
    trainer, replica = run.up(("trainer", "0"), ("replica", "r0"))
    run.give(c.Step(9, 1, (("0.0",),)))
    trainer.takes()
    for progress in (1, 2):
        run.pass_time(5.0)
        trainer.says(c.Activity("trainer", "0", "training", progress))
        run.settle()
    replica.says(c.Activity("replica", "r0", "generating", 1, share=0.5))
    run.settle()
    run.pass_time(25.0)
    (down,) = [event for event in run.controller.news() if isinstance(event, c.Down)]
    assert "it went on all the while: this step needs more than 30 s" in down.reason


def test_a_newer_version_replaces_one_that_waits_to_be_published(run):
    (trainer,) = run.up(("trainer", "0"))
    run.give(c.Publish(3, 1, {"0": "a"}))
    trainer.takes()
    run.pass_time(30.0)
    run.give(c.Publish(4, 2, {"0": "a"}))
    trainer.takes()
    run.pass_time(30.0)
    assert run.controller.news() == []  # the first has no deadline any more
    run.pass_time(11.0)
    (down,) = run.controller.news()
    assert down.reason == "waited 40 s for version 2 to be published"
    (trainer,) = run.up(("trainer", "0"))
    run.give(c.Publish(5, 2, {}))  # nobody is there to whom it could be published
    trainer.takes()
    run.pass_time(41.0)
    assert run.controller.news() == []


def test_a_newer_version_takes_the_place_of_one_that_is_not_out_yet(run):
    (trainer,) = run.up(("trainer", "0"))
    run.give(c.Publish(3, 1, {}))
    trainer.takes()
    run.pass_time(30.0)
    run.give(c.Publish(4, 2, {}))
    trainer.takes()
    run.pass_time(30.0)
    trainer.says(c.Published(2, 4))
    run.pass_time(60.0)
    assert run.controller.news() == [c.Published(2, 4)]


def test_the_deadline_of_scoring_counts_from_the_last_outcome(run):
    data, scorer = run.up(("data", "0"), ("scorer", "0"))
    run.give(c.Score(3, ("1.0", "1.1", "1.2", "1.3")))
    scorer.takes()
    for name in ("1.0", "1.1"):
        run.pass_time(50.0)
        scorer.says(c.Scored(name, 1.0, 3))
    run.give(c.Abort(4, ("1.2",)))
    scorer.takes()
    data.takes()
    data.says(c.Discarded(4))
    run.pass_time(50.0)
    assert [type(event) for event in run.controller.news()] == [c.Scored, c.Scored, c.Discarded]
    run.pass_time(20.0)
    assert [type(event) for event in run.controller.news()] == [c.Down]


def test_a_score_that_was_forgotten_is_missed_though_later_ones_come(run):
    (scorer,) = run.up(("scorer", "0"))
    run.give(c.Score(3, ("1.0",)))
    scorer.takes()
    news = []
    for number in range(10):
        run.give(c.Score(4 + number, (f"2.{number}",)))
        scorer.takes()
        run.pass_time(30.0)
        if any(isinstance(event, c.Down) for event in news):
            break
        scorer.says(c.Scored(f"2.{number}", 1.0, 4 + number))
        news += run.controller.news()
    downs = [event for event in news if isinstance(event, c.Down)]
    assert [down.reason for down in downs] == ["waited 60 s for trajectories to be scored"]
    assert number <= 5  # what was asked for 60 s after it came, and then nothing began the deadline anew


def test_scores_are_waited_for_anew_after_all_have_come_or_were_dropped_or_the_scorer_died(run):
    data, scorer = run.up(("data", "0"), ("scorer", "0"))
    run.give(c.Score(3, ("1.0",)))
    scorer.takes()
    scorer.says(c.Scored("1.0", 1.0, 3))
    run.give(c.Score(4, ("1.1",)), c.Abort(5, ("1.1",)))
    data.takes()
    scorer.takes()
    data.says(c.Discarded(5))
    run.pass_time(61.0)
    assert [type(event) for event in run.controller.news()] == [c.Scored, c.Discarded]
    for seq, incarnation in ((6, 1), (7, 2)):
        run.give(c.Score(seq, (f"{seq}.0",)))
        if incarnation == 1:
            scorer.breaks(MemberDeadError("gone"))
            run.settle()
            (scorer,) = run.up(("scorer", "0"))
    scorer.takes()
    scorer.takes()
    run.pass_time(61.0)
    (down,) = [event for event in run.controller.news() if isinstance(event, c.Down)]
    assert down.reason == "waited 60 s for trajectories to be scored"


@pytest.mark.parametrize(("answers", "ends"), [(3, False), (4, True), (None, True)])
def test_an_answer_to_a_call_before_it_ends_no_wait(run, answers, ends):
    (environment,) = run.up(("environment", "0"))
    run.give(c.Call(3, "0", ("1.0",)))
    environment.takes()
    environment.says(c.Turned("1.0", 1, 9, answers=3))
    run.settle()
    run.give(c.Call(4, "0", ("1.0",)))
    environment.takes()
    environment.says(c.Turned("1.0", 1, 9, answers=answers), c.Interrupted("r0", "1.0", 3))
    run.pass_time(81.0)
    assert any(isinstance(event, c.Down) for event in run.controller.news()) is not ends


def test_the_deadline_of_predicting_counts_from_the_last_answer_and_ends_with_the_ranker(run):
    (ranker,) = run.up(("ranker", "0"))
    run.give(c.Predict(3, (0, 1)), c.Predict(4, (2,)))
    ranker.takes()
    run.pass_time(50.0)
    ranker.says(c.Predicted(0, 100.0, 3))
    run.pass_time(50.0)
    assert [type(event) for event in run.controller.news()] == [c.Predicted]
    run.pass_time(30.0)
    assert [type(event) for event in run.controller.news()] == [c.Down]
    run.pass_time(100.0)
    assert run.controller.news() == []


def test_a_ranker_that_answers_the_newest_question_first_is_alive_however_old_others_become(run):
    (ranker,) = run.up(("ranker", "0"))
    run.give(c.Predict(3, (0,)))
    ranker.takes()
    for prompt in range(1, 10):
        run.give(c.Predict(3 + prompt, (prompt,)))
        ranker.takes()
        run.pass_time(30.0)
        ranker.says(c.Predicted(prompt, 100.0, 3 + prompt))
    run.settle()
    assert {type(event) for event in run.controller.news()} == {c.Predicted}
    run.pass_time(71.0)
    (down,) = run.controller.news()
    assert down.reason == "waited 70 s for lengths to be predicted"


def test_each_environment_has_a_deadline_that_counts_from_its_own_last_answer(run):
    first, second = run.up(("environment", "0"), ("environment", "1"))
    run.give(c.Call(3, "0", ("0.0", "0.1")), c.Call(4, "1", ("1.0",)))
    first.takes()
    second.takes()
    run.pass_time(60.0)
    first.says(c.Turned("0.0", 1, 9, answers=3))
    run.pass_time(30.0)
    said, down = run.controller.news()
    assert (type(said), down) == (c.Turned, c.Down("environment", "1", down.reason, c.Cause.SILENT))
    assert "environment 1 to answer turns" in down.reason
    run.give(c.Close(5, "0", ("0.1",)))
    first.takes()  # nothing is waited for any more
    run.pass_time(200.0)
    assert run.controller.news() == []


def test_a_silence_is_told_again_and_again_until_it_ends(run):
    silent, alive = run.up(("relay", "0"), ("replica", "r0"))
    silent.silent = True
    run.pass_time(7.0)
    first = run.controller.news()
    assert [(event.role, event.id) for event in first] == [("relay", "0")]
    assert isinstance(first[0], c.Silent)
    assert first[0].silent_s >= 5.0
    run.pass_time(6.0)
    assert [event.silent_s >= 10.0 for event in run.controller.news()] == [True]
    assert not silent.killed  # that is for detection to say
    assert not alive.killed


def test_what_a_member_broke_of_is_told_with_its_cause(run):
    for error, cause, said in (
        (MemberDeadError("died"), c.Cause.DIED, "died"),
        (DeadlineError("late"), c.Cause.SILENT, "late"),
        (CheckpointUnusableError("torn"), c.Cause.CHECKPOINT, "torn"),
        (KeyError("x"), c.Cause.BROKE, "KeyError: 'x'"),
    ):
        run.up(("trainer", "0"))
        run.member("trainer").breaks(error)
        run.settle()
        assert run.controller.news() == [c.Down("trainer", "0", said, cause)]


# ---- instants, the log, faults --------------------------------------------------------------------------------------


def test_what_comes_together_is_handled_together(run):
    r0, r1 = run.up(("replica", "r0"), ("replica", "r1"))
    r0.says(c.Finished("r0", "1.0", 3))
    r1.says(c.Finished("r1", "2.0", 3))
    run.settle()
    assert [len(events) for _, events in run.controller.heard] == [2]


def test_the_log_has_an_instant_before_its_commands_are_carried_out(run):
    (member,) = run.up(("replica", "r0"))
    when = []
    run.log.append = lambda now, events, commands, heard: when.append(len(member.told()))
    run.give(route(1))
    assert when == [0]

    def full(now, events, commands, heard):
        raise OSError("disk full")

    run.log.append = full
    with pytest.raises(OSError, match="disk full"):
        run.give(route(2))
    assert len(member.told()) == 1


def test_what_a_member_said_is_acknowledged_once_it_is_in_the_log(run):
    (member,) = run.up(("replica", "r0"))
    asked = lambda: member.under_way("events")[0][0][1:]  # noqa: E731
    assert asked() == (0, 0)
    member.says(c.Finished("r0", "1.0", 3), c.Finished("r0", "2.0", 3))
    run.settle()
    assert run.log.heard[-1] == {"replica r0": 2}
    assert asked() == (2, 0)  # asked before the instant was logged
    member.says()
    run.settle()
    assert asked() == (2, 2)


def test_a_controller_that_was_replaced_lets_go_of_the_run(run):
    replica, trainer = run.up(("replica", "r0"), ("trainer", "0"))
    replica.breaks(StaleEpochError("a later one"))
    with pytest.raises(SupersededError, match="a later one"):
        run.settle()
    assert not replica.killed
    assert not trainer.killed


def test_what_carrying_out_makes_known_belongs_to_the_next_instant(run):
    run.give(c.Start(1, "data", "0"), c.Start(2, "scorer", "0"))
    run.settle()
    instants = [(events, commands) for _, events, commands in run.log.instants if events or commands]
    started = next(index for index, (_, commands) in enumerate(instants) if commands)
    assert not any(isinstance(event, c.Up) for event in instants[started][0])
    assert [type(event) for event in instants[started + 1][0]] == [c.Up, c.Up]


def test_scripted_faults_strike_once_their_member_is_up():
    run = Driven(
        faults=[parse_fault("hang:replica:1@step2"), parse_fault("trainer@3s"), parse_fault("stall:replica@1s")]
    )
    r0, r1 = run.up(("replica", "r0"), ("replica", "r1"))
    run.pass_time(2.0)
    assert (r0.struck, r1.struck) == ([FaultKind.STALL], [])
    run.controller.view.step = 2
    r0.says(c.Stepped(2))
    run.settle()
    assert r1.struck == [FaultKind.HANG]
    struck = [event for _, events in run.controller.heard for event in events if isinstance(event, c.Struck)]
    assert struck == [
        c.Struck("replica", "r0", "stall", fault="stall:replica@1s"),
        c.Struck("replica", "r1", "hang", fault="hang:replica:1@step2"),
    ]
    run.pass_time(3.0)
    (trainer,) = run.up(("trainer", "0"))
    run.pass_time(1.5)
    assert trainer.struck == [FaultKind.KILL]


def test_a_member_is_struck_where_it_says_that_it_waits():
    run = Driven(faults=[parse_fault("trainer@1s:backward"), parse_fault("raise:trainer@1s")])
    (trainer,) = run.up(("trainer", "0"))
    run.pass_time(2.0)
    (asked,) = trainer.under_way("stop_at")
    assert asked[0] == ("backward", 5.0)
    asked[1].set_result(False)  # not yet: it is asked again
    run.settle()
    assert trainer.struck == []
    trainer.under_way("stop_at")[-1][1].set_result(True)
    run.settle()
    assert trainer.struck == [FaultKind.KILL]
    run.pass_time(1.0)
    assert trainer.struck == [FaultKind.KILL, FaultKind.RAISE]
    struck = [event for _, events in run.controller.heard for event in events if isinstance(event, c.Struck)]
    assert [(event.kind, event.phase) for event in struck] == [("kill", "backward"), ("raise", "")]


def test_a_fault_whose_member_dies_on_the_way_to_its_phase_strikes_the_next():
    run = Driven(faults=[parse_fault("replica@0s:decode")])
    (first,) = run.up(("replica", "r0"))
    run.pass_time(1.0)
    first.under_way("stop_at")[0][1].set_exception(MemberDeadError("gone"))
    run.give(c.Restart(8, "replica", "r0"))
    run.settle()
    run.pass_time(1.5)
    second = run.member("replica", "r0")
    assert first.struck == second.struck == []
    second.under_way("stop_at")[0][1].set_result(True)
    run.settle()
    assert second.struck == [FaultKind.KILL]


def test_one_that_comes_up_is_told_where_to_stop_before_what_to_do():
    run = Driven(faults=[parse_fault("replica:r1@step1:pull"), parse_fault("replica:r1@step1")])
    run.controller.view.step = 3
    run.host.comes_up = False
    run.give(c.Restart(8, "replica", "r1"))
    r1 = run.member("replica", "r1")
    run.controller.next = [c.Pull(9, "r1", 3)]  # what follows from its Up
    r1.under_way("ready")[0][1].set_result(Ready())
    run.settle()
    called = [method for method, *_ in r1.calls]
    assert called.index("stop_at") < called.index("submit")
    assert r1.struck == []  # the other fault strikes wherever it is, at the next tick
    r1.under_way("stop_at")[0][1].set_result(True)
    run.settle()
    assert r1.struck == [FaultKind.KILL]


def test_one_whose_step_has_come_is_struck_as_it_comes_up():
    run = Driven(faults=[parse_fault("trainer@step0")])
    run.host.comes_up = False
    run.give(c.Start(1, "trainer", "0"))
    run.pass_time(2.0)
    trainer = run.member("trainer", "0")
    trainer.under_way("ready")[0][1].set_result(Ready())
    run.settle()  # no tick, which is half a second away and may be later than a short step
    assert trainer.struck == [FaultKind.KILL]


def test_the_driver_is_struck_once_the_log_says_so():
    run = Driven(faults=[parse_fault("controller@1s")])
    run.pass_time(2.0)
    assert run.host.driver_struck == [FaultKind.KILL]
    struck = [event for _, events, _ in run.log.instants for event in events if isinstance(event, c.Struck)]
    assert struck == [c.Struck("controller", "0", "kill", fault="controller@1s")]


def test_a_trainer_is_told_to_stop_before_it_loads():
    run = Driven(faults=[parse_fault("trainer@0s:load")])
    run.up(("trainer", "0"))
    run.pass_time(1.0)
    run.host.comes_up = False
    run.give(c.Restart(8, "trainer", "0", version=2))
    run.pass_time(1.0)
    trainer = run.member("trainer")
    assert trainer.calls[0][:2] == ("ready", (2, True))
    trainer.under_way("stop_at")[0][1].set_result(True)
    run.settle()
    assert trainer.struck == [FaultKind.KILL]


def test_only_the_first_rank_of_a_trainer_stops_before_it_loads():
    run = Driven(ranks=2, faults=[parse_fault("trainer@0s:load")])
    run.up(("trainer", "0"))
    run.pass_time(1.0)
    run.host.comes_up = False
    run.give(c.Restart(8, "trainer", "0", version=2))
    ready = [member.calls[0][:2] for member in run.host.spawned[-2:]]
    assert ready == [("ready", (2, True)), ("ready", (2,))]


def test_a_run_that_the_controller_gives_up_says_why(run):
    run.controller.over, run.controller.failure = True, "no way out"
    with pytest.raises(RunFailedError, match="no way out"):
        run.executor.run(run.controller, run.log)


def test_one_that_gave_up_hears_that_it_is_resumed(run):
    run.controller.over, run.controller.failure = True, "no way out"
    resumed = c.Resumed((3,))

    def goes_on(events, now):
        run.controller.over = run.controller.failure = None
        return run.controller.heard.append((now, list(events))) or []

    run.controller.handle_all = goes_on
    run.executor.run(run.controller, run.log, first=resumed, until=lambda: True)
    assert run.controller.heard[-1][1] == [resumed]
    assert run.log.instants[-1][1] == [resumed]


@pytest.mark.parametrize("role", ["replica", "data"])
def test_one_that_does_not_close_in_time_is_killed_and_only_a_store_that_cannot_close_is_an_error(run, role, caplog):
    members = {member.key: member for member in run.up(*EVERYBODY)}
    stuck = members[role, "r1" if role == "replica" else "0"]

    def close(timeout_s):
        raise DeadlineError(f"{role} did not close within {timeout_s} s")

    stuck.close = close
    if role == "data":
        with pytest.raises(DeadlineError, match="data did not close"):
            run.executor.close(1.5)
    else:
        run.executor.close(1.5)
    assert stuck.killed
    assert run.host.spawned[-1] == "closed"


def test_one_that_still_starts_is_killed_without_waiting_for_it(run):
    (trainer,) = run.up(("trainer", "0"))
    run.host.comes_up = False
    run.give(c.Start(7, "replica", "r0"))
    run.executor.close(1.5)
    replica = run.member("replica", "r0")
    assert replica.killed
    assert not trainer.killed
    assert not replica.under_way("close")


def test_members_are_closed_in_order(run):
    members = run.up(*EVERYBODY)
    run.executor.close(1.5)
    assert all(("close", (1.5,)) in [call[:2] for call in member.calls] for member in members)
    assert run.executor.members == {}
    assert run.host.spawned[-1] == "closed"


# ---- time -----------------------------------------------------------------------------------------------------------


def test_members_are_heard_while_the_driver_waits_for_other_work(run):
    (trainer,) = run.up(("trainer", "0"))
    done = Future()
    done.set_result(None)
    run.executor.keep_up(done, 5.0)
    began_s = run.host.time.s
    with pytest.raises(DeadlineError, match="waited 5 s for work beside the run"):
        run.executor.keep_up(Future(), 5.0)
    assert 5.0 < run.host.time.s - began_s <= 6.0
    assert not trainer.killed


def test_ticks_that_a_suspended_machine_missed_are_not_made_up_for(run):
    run.pass_time(3.0)
    run.controller.heard.clear()
    run.host.time.s += 50.0
    run.pass_time(2.0)
    assert 1 <= len(run.controller.heard) <= 3
    assert run.host.time.s < run.executor._next_tick_s <= run.host.time.s + run.host.tick_s


def test_a_deployment_applies_to_who_starts_from_now_on(run):
    assert run.executor.controller is run.controller
    other = dataclasses.replace(run.executor.deployment, name="other")
    run.executor.deployment = other
    assert run.executor.membership.deployment is run.executor.deployment is other


def test_the_stages_of_a_start_are_those_of_the_slowest_rank_and_what_nobody_knows_is_placing():
    run = Driven(ranks=2)
    run.host.comes_up = False
    run.give(c.Start(3, "trainer", "0"))
    first, second = run.host.spawned
    run.host.time.s += 10.0
    first.under_way("ready")[0][1].set_result(Ready(took={"load": 2.0, "import": 1.5}))
    second.under_way("ready")[0][1].set_result(Ready(took={"load": 3.0, "import": 1.0}))
    run.settle()
    (up,) = run.controller.news()
    assert up.took == {"load": 3.0, "import": 1.5, "destroy": 0.0, "place": 5.5}
    run.give(c.Stop(4, "trainer", "0"))
    assert [[name for name, _, _ in member.calls if name == "close"] for member in (first, second)] == [["close"], []]


def test_one_that_is_gone_is_not_silent(run):
    relay, _ = run.up(("relay", "0"), ("replica", "r0"))
    relay.silent = True
    run.pass_time(3.0)
    relay.breaks(MemberDeadError("gone"))
    run.settle()
    assert [type(event) for event in run.controller.news()] == [c.Down]
    run.pass_time(20.0)
    assert run.controller.news() == []
    assert run.executor.awaited <= set(run.executor.members.values())


def test_one_that_starts_again_is_not_as_silent_as_the_one_before(run):
    (relay,) = run.up(("relay", "0"))
    relay.breaks(MemberDeadError("gone"))
    run.host.comes_up = False
    run.give(c.Restart(8, "relay", "0"))
    run.controller.news()
    run.pass_time(15.0)
    assert run.controller.news() == []


def test_the_end_of_a_run_is_told_to_nobody(run):
    run.give(c.Finish(8), c.Start(9, "relay", "0"))
    assert run.member("relay").calls[0][0] == "ready"
