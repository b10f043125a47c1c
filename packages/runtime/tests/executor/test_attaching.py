"""Another controller takes the place of one that died: it restarts nobody, lacks nothing, and waits for what was under way."""

import pytest
from scripted_host import LIMITS, Driven
from test_executor import EVERYBODY, route

from tailrace import contracts as c
from tailrace.runtime.executor.doors import Ready


@pytest.fixture
def run():
    return Driven()


def test_members_live_on(run):
    members = run.up(*EVERYBODY)
    spawned = len(run.host.spawned)
    run.replaced()
    run.settle()
    assert run.controller.news() == [c.Attached(2)]
    assert len(run.host.spawned) == spawned
    assert set(run.host.told.values()) == {None}
    assert not any(member.killed for member in members)
    assert all(len(member.under_way("events")) == 1 for member in members)


def test_what_was_heard_and_not_logged_is_asked_for_again(run):
    (member,) = run.up(("replica", "r0"))
    member.says(c.Finished("r0", "1.0", 3))
    run.settle()
    member.says(c.Finished("r0", "2.0", 3))  # the controller dies with it
    run.replaced()
    assert member.under_way("events")[-1][0][1:] == (1, 1)


def test_commands_that_were_logged_and_not_taken_are_sent_again(run):
    (member,) = run.up(("replica", "r0"))
    run.give(route(1))
    member.takes()
    run.give(route(2), route(3))
    member.says(c.Snapshot("r0", 0.0, 1, 0, 0, 0, last_seq=2))
    run.settle()
    run.replaced()
    assert [command.seq for command in member.told()[-1]] == [3]


def test_a_deadline_outlives_its_controller(run):
    trainer, scorer, ranker = run.up(("trainer", "0"), ("scorer", "0"), ("ranker", "0"))
    run.give(c.Step(5, 1, (("0.0",),)), c.Score(6, ("1.0", "2.0")), c.Predict(7, (1, 2)))
    scorer.says(c.Scored("1.0", 1.0, answers=6))
    ranker.says(c.Predicted(1, 300.0, answers=7))
    run.settle()
    run.replaced()
    for member in (trainer, scorer, ranker):
        member.takes()
    run.controller.news()
    run.pass_time(31.0)
    downs = [event for event in run.controller.news() if isinstance(event, c.Down)]
    assert [event.reason for event in downs] == [
        "waited 30 s for trainer 0 to train version 1; no micro-batch was seen to end; the deadline is 30 s (deadlines.step_s)"
    ]
    run.pass_time(31.0)
    (down,) = run.controller.news()
    assert down.reason == "waited 60 s for trajectories to be scored"
    run.pass_time(10.0)
    (down,) = run.controller.news()
    assert down.reason == "waited 70 s for lengths to be predicted"


def test_what_was_answered_is_not_waited_for(run):
    (trainer,) = run.up(("trainer", "0"))
    run.give(c.Step(5, 1, (("0.0",),)))
    trainer.takes()
    trainer.says(c.Stepped(1, answers=5))
    run.settle()
    run.replaced()
    run.controller.news()
    run.pass_time(60.0)
    assert run.controller.news() == []
    assert [[command.seq for command in call] for call in trainer.told()] == [[5]]


def test_one_that_died_meanwhile_goes_down_as_ever(run):
    replica, _ = run.up(("replica", "r0"), ("data", "0"))
    replica.killed = True
    run.replaced()
    assert run.controller.news() == [
        c.Attached(2),
        c.Down("replica", "r0", "it died while no controller was there", c.Cause.DIED),
    ]


def test_all_ranks_of_a_trainer_end_with_one():
    run = Driven(ranks=2)
    run.up(("trainer", "0"))
    first, second = run.member("trainer"), run.member("trainer", "0.1")
    second.killed = True
    run.replaced()
    assert first.killed
    (_, down) = run.controller.news()
    assert (down.role, down.id) == ("trainer", "0")


def test_one_that_is_starting_says_that_it_is_up_to_the_other(run):
    run.host.comes_up = False
    run.give(c.Start(7, "relay", "0"))
    run.replaced()
    assert run.host.told["relay", "0"] is not None  # what it is may have been lost with its controller
    member = run.member("relay")
    member.silent = True  # as one is while it starts
    run.pass_time(LIMITS.suspect_s + 1.0)
    member.under_way("ready")[-1][1].set_result(Ready(address="here"))
    run.settle()
    assert run.controller.news() == [c.Attached(2), c.Up("relay", "0", machine="m0", address="here", answers=7)]


@pytest.mark.parametrize("died", ["before it was started", "while it started"])
def test_a_start_that_was_only_logged_is_carried_out(run, died):
    (old,) = run.up(("trainer", "0"))
    run.host.comes_up = False
    if died == "while it started":
        run.give(c.Restart(8, "trainer", "0", version=3))
        run.member("trainer").killed = True
    else:
        run.log.append(1.0, [], [c.Restart(8, "trainer", "0", version=3)], {})
    run.replaced()
    new = run.member("trainer")
    assert old.killed
    assert (new.incarnation, new.calls[0][:2], new.killed) == (2, ("ready", (3,)), False)


def test_one_that_is_told_to_stop_is_told_again(run):
    (member,) = run.up(("replica", "r0"))
    run.give(c.Stop(8, "replica", "r0"))
    run.replaced()
    member.under_way("close")[-1][1].set_result(None)
    run.settle()
    assert run.controller.news()[-1] == c.Down("replica", "r0", "it was told to stop", c.Cause.STOPPED)


def test_the_next_incarnation_counts_on(run):
    run.up(("replica", "r0"))
    run.give(c.Restart(8, "replica", "r0"))
    run.settle()
    run.replaced()
    run.give(c.Restart(9, "replica", "r0"))
    assert run.member("replica", "r0").incarnation == 3


def test_an_answer_that_the_dead_one_waited_for_is_not_taken_for_another(run):
    (member,) = run.up(("replica", "r0"))
    run.give(c.Pull(4, "r0", 1))
    before = member.under_way("submit") + member.under_way("events")
    run.replaced()
    run.settle()
    run.controller.news()
    for _, future in before:
        future.set_result((7, [c.Finished("r0", "1.0", 3)]))
    run.settle()
    assert run.controller.news() == []
