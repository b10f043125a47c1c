"""What is scored when, and what becomes of what cannot be."""

from scripted import Scripted, of, policy, spec

from tailrace import contracts as c
from tailrace.controller.spec import EvaluationPlan


def one_replica(**changes):
    return Scripted(spec(provisioning=policy("provisioning", "static", count=1), **changes))


def test_what_finished_together_is_scored_by_one_command_in_order():
    run = one_replica()
    given = run.go(c.Tick(), leave=(c.Route,))
    refs = [ref.trajectory for ref in of(c.Route, given)[0].trajectories]
    commands = run.handle(*(c.Finished("r0", name, 3) for name in reversed(refs)))
    assert [command.trajectories for command in of(c.Score, commands)] == [tuple(reversed(refs))]


def test_nothing_is_scored_whose_group_ends_with_the_events_that_came_with_it():
    batching = policy("batching", "redundant", samples=1, surplus_samples=1)
    run = one_replica(batching=batching, steps=1)
    run.go(c.Tick(), leave=(c.Route,))
    commands = run.handle(c.Finished("r0", "0.0", 3))
    assert [command.trajectories for command in of(c.Score, commands)] == [("0.0",)]
    assert [command.trajectories for command in of(c.Abort, commands)] == [("0.1",)]  # before any score
    assert [command.reason.why for command in of(c.Abort, commands)] == [c.Why.SURPLUS_SAMPLE]
    commands = run.handle(c.Finished("r0", "0.1", 9), c.Scored("0.0", 1.0))  # it finished before the abort arrived
    assert not of(c.Score, commands)


def fails(run, name):
    return run.go(c.ScoringFailed(name, "verifier broke"), leave=(c.Score, c.Step))


def test_a_verifier_that_breaks_is_tried_again_and_its_group_then_fails_without_a_reward():
    run = one_replica(scoring_attempts=3, batching=policy("batching", "plain", samples=2, deferrals=0))
    run.go(c.Tick(), leave=(c.Score,))
    for _ in range(2):
        assert [command.trajectories for command in of(c.Score, fails(run, "0.0"))] == [("0.0",)]
    given = fails(run, "0.0")
    aborts = of(c.Abort, given)
    assert [(command.trajectories, command.reason.why) for command in aborts] == [(("0.0", "0.1"), c.Why.NOT_SCORED)]
    assert aborts[0].reason.numbers == {"attempts": 3}
    assert run.view.counts.failed == 1
    assert of(c.Route, given)  # another group takes its place


def test_a_verifier_that_breaks_over_what_has_a_reward_or_is_nobodys_changes_nothing():
    run = one_replica(scoring_attempts=1)
    run.go(c.Tick(), leave=(c.Score,))
    run.go(c.Scored("0.0", 1.0), leave=(c.Score,))
    for name in ("0.0", "99.0"):
        assert fails(run, name) == []
    run.catch_up()
    assert run.view.finished
    assert (run.view.counts.deferred, run.view.counts.failed) == (0, 0)


def test_a_prompt_that_could_not_be_scored_comes_again_later():
    run = one_replica(scoring_attempts=1, steps=60)
    run.go(c.Tick(), leave=(c.Score,))
    given = fails(run, "0.0")
    assert [command.reason.why for command in of(c.Abort, given)] == [c.Why.NOT_SCORED_YET]
    assert (run.view.counts.deferred, run.view.counts.failed) == (1, 0)
    run.catch_up()
    assert run.view.finished
    routed = [ref for route in of(c.Route, run.given) for ref in route.trajectories]
    first, again = sorted({ref.group for ref in routed if ref.prompt == 0})
    assert first == 0
    assert again > 30  # other prompts came first
    counts = run.view.counts
    assert (counts.deferred, counts.failed) == (1, 0)
    assert counts.admitted == counts.trained + counts.filtered + counts.deferred


def test_a_prompt_is_deferred_as_often_as_the_policy_says():
    source = policy("batching", "plain", samples=2, deferrals=2).open()
    progress = c.Progress(0, 0, 0, 0, 0, 0, 0, 2, 99)
    fates = []
    for group in range(200):
        launch = source.next(progress)
        source.launched(group, launch)
        if launch.prompt == 5:
            fates.append(source.ended(group, c.GroupEnd.UNSCORED))
        else:
            assert source.ended(group, c.GroupEnd.TRAINED) is c.PromptFate.DONE
    assert fates == [c.PromptFate.AGAIN, c.PromptFate.AGAIN, c.PromptFate.DONE]
    assert source.state()["open"] == {}


def test_a_scorer_that_dies_costs_no_attempt():
    run = one_replica(scoring_attempts=2)
    run.go(c.Tick(), leave=(c.Score,))
    fails(run, "0.0")
    waiting = {name for score in of(c.Score, run.left) for name in score.trajectories}
    for _ in range(3):
        run.forget(c.Score)
        again = run.down("scorer", leave=(c.Score,))
        assert {name for score in of(c.Score, again) for name in score.trajectories} == waiting
        assert {name for score in of(c.Score, run.left) for name in score.trajectories} == waiting
    run.catch_up()
    assert run.view.finished
    assert run.view.counts.failed == 0


def test_a_verifier_that_always_breaks_ends_the_run_with_its_reason():
    run = one_replica(scoring_attempts=1, failed_groups_limit=2)
    run.go(c.Tick(), leave=(c.Score,))
    fails(run, "0.0")
    assert run.view.failure is None
    fails(run, "1.0")
    assert run.view.failure == "2 groups could not be scored, the last because: verifier broke"


def test_a_reward_that_comes_twice_or_for_nobody_changes_nothing():
    run = one_replica()
    run.go(c.Tick(), leave=(c.Score, c.Step))
    run.handle(c.Scored("0.0", 1.0))
    before = run.controller.state()
    assert run.handle(c.Scored("0.0", 0.0), c.Scored("0.99", 1.0)) == []
    assert run.controller.state() == before


def test_a_held_out_problem_that_was_given_up_is_not_sent_to_the_next_scorer():
    run = one_replica(scoring_attempts=1, evaluation=EvaluationPlan(size=3, modes=("sampled",)))
    run.go(c.Tick(), leave=(c.Score,))
    fails(run, "e0.sampled.1")
    run.forget(c.Score)
    again = run.down("scorer", leave=(c.Score,))
    sent = {name for score in of(c.Score, again) for name in score.trajectories}
    assert {"e0.sampled.0", "e0.sampled.2"} <= sent
    assert "e0.sampled.1" not in sent
    run.catch_up()
    first = run.view.evaluations[0]
    assert (len(first.rewards), first.failed) == (2, 1)
    assert run.view.finished


def test_a_prompt_that_was_not_scored_comes_again_after_32_launches():
    source = policy("batching", "plain", samples=2).open()
    progress = c.Progress(0, 0, 0, 0, 0, 0, 0, 2, 99)
    seen = []
    for group in range(40):
        launch = source.next(progress)
        source.launched(group, launch)
        seen.append(launch.prompt)
        if group == 2:
            source.ended(0, c.GroupEnd.UNSCORED)
    assert seen.index(0, 1) == 3 + 32
