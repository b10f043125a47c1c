"""A run that resumes with other quantities: more steps, more or fewer replicas. Its log replays to the same state."""

import pytest
from scripted import Scripted, of, policy, spec

from tailrace import contracts as c
from tailrace.controller.controller import Controller
from tailrace.controller.spec import EvaluationPlan


def replayed(run):
    """A controller that took in what the run's took in, and gave the same commands."""
    again = Controller(run.controller.spec, relays=run.controller.relays)
    for now, events, commands in run.calls:
        assert again.handle_all(events, now) == commands
    return again


def resume(run, *, leave=(), **changed):
    run.forget()
    return run.go(c.Resumed(tuple(run.controller.trainer.fallbacks), **changed), leave=leave)


@pytest.mark.parametrize("batching", [{}, {"surplus_groups": 1}])
def test_a_finished_run_goes_on_with_more_steps(batching):
    run = Scripted(spec(batching=policy("batching", "redundant", samples=2, **batching)))
    run.go(c.Tick())
    assert (run.view.finished, run.view.step) == (True, 3)
    trained = run.view.counts.trained
    resume(run, steps=7)
    assert (run.view.finished, run.view.failure, run.view.step, run.view.steps) == (True, None, 7, 7)
    counts = run.view.counts
    assert counts.trained == trained + 4 * 2
    assert counts.admitted == counts.trained + counts.filtered + counts.failed
    assert replayed(run).state() == run.controller.state()


def test_a_source_hears_of_each_group_once_although_the_run_ends_twice():
    run = Scripted(spec(keep_checkpoints=3))
    heard = []
    ended = run.controller.source.ended
    run.controller.source.ended = lambda group, end: heard.append(group) or ended(group, end)
    run.go(c.Tick())
    assert run.view.finished
    resume(run, steps=8)
    assert run.view.finished
    assert sorted(heard) == sorted(set(heard))
    assert len(heard) == run.view.counts.admitted


@pytest.mark.parametrize(("count", "names"), [(1, ["r0"]), (2, ["r0", "r1"]), (4, ["r0", "r1", "r2", "r3"])])
def test_replicas_may_become_more_or_fewer(count, names):
    run = Scripted(spec(steps=6))
    run.go(c.Tick(), leave=(c.Step,))
    given = resume(run, replicas=count)
    assert [member.id for member in run.controller.members.of("replica")] == names
    restarted = [command.id for command in of(c.Restart, given) if command.role == "replica"]
    started = [command.id for command in of(c.Start, given) if command.role == "replica"]
    assert (restarted, started) == (names[:2], names[2:])
    assert run.view.finished, run.view.failure
    assert {command.replica for command in of(c.Route, given)} <= set(names)
    assert replayed(run).state() == run.controller.state()


def test_fewer_steps_end_a_run_that_has_done_them():
    run = Scripted(spec(steps=50))
    run.go(c.Tick(), leave=(c.Step,))
    for _ in range(4):
        run.catch_up(leave=(c.Step,))
    done = run.view.step
    resume(run, steps=done)
    assert (run.view.finished, run.view.step) == (True, done)


def test_what_fewer_steps_end_with_is_evaluated_as_the_last():
    run = Scripted(spec(steps=50, evaluation=EvaluationPlan(size=2, last=("greedy",))))
    run.go(c.Tick(), leave=(c.Step,))
    run.catch_up(leave=(c.Step,))
    resume(run, steps=1)
    assert run.view.finished
    assert [(one.version, one.mode) for one in run.view.evaluations] == [(0, "sampled"), (1, "sampled"), (1, "greedy")]
    assert replayed(run).state() == run.controller.state()


def test_a_run_that_goes_on_after_it_failed_counts_groups_without_a_reward_anew():
    run = Scripted(spec(failed_groups_limit=2, scoring_attempts=1))
    run.go(c.Tick(), leave=(c.Score,))
    first, second, third = ([f"{group}.0", f"{group}.1"] for group in range(3))
    run.go(c.ScoringFailed(first[0], "no sandbox"), c.ScoringFailed(second[0], "no sandbox"), leave=(c.Score,))
    assert run.view.failure == "2 groups could not be scored, the last because: no sandbox"
    run.held = (*third,)
    resume(run, leave=(c.Score,))
    run.go(c.ScoringFailed(third[0], "an odd response"), leave=(c.Score,))
    assert run.view.failure is None
    run.catch_up()
    assert run.view.finished


def test_a_batch_that_is_whole_after_the_last_step_is_not_trained_on():
    run = Scripted(spec(batching=policy("batching", "redundant", samples=2, surplus_groups=2), steps=2))
    run.go(c.Tick(), leave=(c.Step,))
    for _ in range(2):
        run.catch_up(leave=(c.Step,))
    assert run.view.finished, run.view.failure
    assert [command.version for command in of(c.Step, run.given)] == [1, 2]
    assert run.view.counts.admitted == 6


def test_replicas_that_are_added_start_at_once_and_not_after_the_store_has_answered():
    run = Scripted(spec(steps=6))
    run.go(c.Tick(), leave=(c.Step,))
    given = run.handle(c.Resumed(tuple(run.controller.trainer.fallbacks), replicas=4))
    assert [command.id for command in of(c.Start, given)] == ["r2", "r3"]
