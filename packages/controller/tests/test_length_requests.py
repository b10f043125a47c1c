"""Lengths are asked for ahead and reach the routing policy whenever they come, and nothing waits for them."""

import math
from statistics import NormalDist

import pytest
from scripted import Scripted, of, policy, spec

from tailrace import contracts as c
from tailrace.contracts import Why
from tailrace.controller.controller import Controller
from tailrace.controller.errors import ControllerError
from tailrace.controller.spec import EvaluationPlan

COST = {"k1": 0.0, "k2": 0.0, "k3": 4e-4, "k4": 0.01}
LENGTHS = [610, 9_200, 580, 720, 640, 8_100, 500, 690, 550, 660]  # of prompts 0 to 9; two of ten are the tail


def pipeline(**changes):
    """Three replicas, ten groups of two in a batch, and a ranker."""
    return spec(
        **{
            "admission": policy("admission", "on-policy"),
            "sync": policy("sync", "barrier"),
            "routing": policy("routing", "skew-aware", **COST),
            "provisioning": policy("provisioning", "static", count=3),
            "batch_groups": 10,
            "replica_batch": 64,
            "buffer_groups": 20,
            "steps": 1,
            "ranker": True,
        }
        | changes
    )


def scripted(lengths=LENGTHS, **changes):
    run = Scripted(pipeline(**changes))
    run.lengths = dict(enumerate(lengths))
    return run


def routed(run):
    """What each replica was given, in order: prompts and reasons."""
    found = {}
    for route in of(c.Route, run.given):
        for index, ref in enumerate(route.trajectories):
            found.setdefault(route.replica, []).append((ref.prompt, route.reason(index).why))
    return found


def prompts(run):
    return [[prompt for prompt, _ in given] for _, given in sorted(routed(run).items())]


def reasons(run):
    return {why for given in routed(run).values() for _, why in given}


def asked(commands):
    """The prompts of all questions among commands, none of which is empty."""
    questions = of(c.Predict, commands)
    assert all(question.prompts for question in questions)
    return [prompt for question in questions for prompt in question.prompts]


def held(run):
    """Prompts of which the controller still knows something."""
    known = run.controller.ledger.predictions
    return {*known.tokens, *known.asked}


def replayed(run):
    """A controller that is told what a run's was, and gives the same commands; no one is asked for predictions."""
    controller = Controller(run.controller.spec)
    for now, events, commands in run.calls:
        assert controller.handle_all(events, now) == commands
    assert controller.state() == run.controller.state()


# ---- what a prediction decides ----------------------------------------------------------------------------------------


def test_what_is_predicted_ahead_decides_where_a_prompt_runs():
    run = scripted()
    run.go(c.Tick(), leave=(c.Route,))
    assert sorted(prompts(run)) == [[1, 1], [3, 3, 7, 7, 9, 9, 4, 4, 0, 0, 2, 2, 8, 8, 6, 6], [5, 5]]
    assert {why for _, why in routed(run)[of(c.Route, run.given)[0].replica]} == {Why.LONG_TAIL}
    replayed(run)


def test_a_prediction_that_comes_late_counts_for_what_still_waits():
    run = scripted(replica_batch=2)
    run.go(c.Tick(), leave=(c.Route, c.Predict))
    first = sorted(prompts(run))
    assert [len(given) for given in first] == [2, 2, 2]
    assert reasons(run) == {Why.UNPREDICTED}
    assert run.catch_up(c.Predict, leave=(c.Route,)) == []  # nothing is decided for a prediction's sake
    views = {view.trajectory: view for replica in run.controller.fleet.up() for view in replica.assigned.values()}
    assert {view.predicted for view in views.values()} == {610, 9_200, 580}  # those that run already
    run.catch_up(leave=(c.Route,))
    waiting = [group for group in range(3, 10) if [group] * 2 not in first]
    later = [each for given in routed(run).values() for each in given if each[0] in waiting]
    assert (5, Why.LONG_TAIL) in later
    assert not any(why is Why.UNPREDICTED for _, why in later)
    replayed(run)


def test_a_later_prediction_replaces_an_earlier_one():
    run = scripted([8_000] * 10)
    run.go(c.Tick(), leave=(c.Pull, c.Route))
    run.go(*(c.Predicted(prompt, tokens) for prompt, tokens in enumerate(LENGTHS)), leave=(c.Pull, c.Route))
    run.catch_up(c.Pull, leave=(c.Route,))
    assert sorted(prompts(run))[0] == [1, 1]


def test_the_mean_is_the_order_where_it_is_predicted():
    run = scripted([])
    run.go(c.Tick(), leave=(c.Pull, c.Route))
    medians = [40.0 - prompt for prompt in range(10)]
    run.go(
        *(c.Predicted(prompt, medians[prompt], p90=120.0, mean=tokens) for prompt, tokens in enumerate(LENGTHS)),
        leave=(c.Pull, c.Route),
    )
    run.catch_up(c.Pull, leave=(c.Route,))
    views = [view for replica in run.controller.fleet.up() for view in replica.assigned.values()]
    assert all(view.predicted == LENGTHS[view.group] for view in views)
    assert sorted(prompts(run)) == [[1, 1], [3, 3, 7, 7, 9, 9, 4, 4, 0, 0, 2, 2, 8, 8, 6, 6], [5, 5]]
    assert left_of(run, "0.0") == pytest.approx(mean_left(40.0, 120.0, 0), rel=1e-2), "the quantiles say what is left"
    replayed(run)


def test_what_goes_back_to_the_pool_keeps_its_prediction_and_takes_a_new_one():
    run = scripted(sync=policy("sync", "interrupting"))
    run.go(c.Tick(), leave=(c.Route,))
    holder = next(name for name, given in routed(run).items() if given[0][0] == 1)
    others = [replica.id for replica in run.controller.fleet.up() if replica.id != holder]
    for name in others:  # nobody else can take it
        run.down("replica", name, leave=(c.Route, "replica"))
    run.down("replica", holder, leave=(c.Route, "replica"))
    waiting = {view.group: view for level in run.controller.ledger.levels.values() for view in level.values()}
    assert [waiting[group].predicted for group in range(10)] == LENGTHS
    run.go(c.Predicted(1, 50.0), leave=(c.Route, "replica"))
    waiting = {view.group: view for level in run.controller.ledger.levels.values() for view in level.values()}
    assert waiting[1].predicted == 50.0


def test_an_evaluation_has_prompts_of_its_own():
    run = scripted(evaluation=EvaluationPlan(size=2, every=1))
    run.go(c.Tick(), leave=(c.Route,))
    states = run.controller.ledger.trajectories.values()
    views = [(state, run.controller.ledger.view(state)) for state in states]
    assert {view.predicted for state, view in views if state.purpose is c.Purpose.EVAL} == {None}
    assert all(view.predicted == LENGTHS[state.prompt] for state, view in views if state.purpose is c.Purpose.TRAIN)


@pytest.mark.parametrize("tokens", [0.0, -3.0, math.nan, math.inf])
def test_a_length_that_cannot_be_is_refused(tokens):
    run = scripted()
    with pytest.raises(ControllerError, match=r"tokens predicted for prompt 4, expected a finite number of at least 1"):
        run.go(c.Predicted(4, tokens))


@pytest.mark.parametrize("p90", [99.0, math.nan, math.inf])
def test_a_quantile_that_cannot_be_is_refused(p90):
    run = scripted()
    with pytest.raises(
        ControllerError, match=r"0.9-quantile of .* for prompt 4, expected a finite number of at least its"
    ):
        run.go(c.Predicted(4, 100.0, p90=p90))


@pytest.mark.parametrize("mean", [0.5, -1.0, math.nan, math.inf])
def test_a_mean_that_cannot_be_is_refused(mean):
    run = scripted()
    with pytest.raises(ControllerError, match=r"found a mean of .* tokens predicted for prompt 4, expected a finite"):
        run.go(c.Predicted(4, 100.0, p90=200.0, mean=mean))


# ---- what is left -----------------------------------------------------------------------------------------------------


def mean_left(p50, p90, generated, most=math.inf):
    """E[min(L, most) - t | L > t] of the log-normal law with these quantiles, summed up in small steps."""
    law = NormalDist(math.log(p50), math.log(p90 / p50) / NormalDist().inv_cdf(0.9))
    steps = 200_000
    low = law.cdf(math.log(generated)) if generated else 0.0
    lengths = (math.exp(law.inv_cdf(low + (1 - low) * (step + 0.5) / steps)) for step in range(steps))
    return sum(min(length, most) for length in lengths) / steps - generated


def left_of(run, trajectory):
    """What every view of a trajectory says is left of it."""
    levels = [level[trajectory] for level in run.controller.ledger.levels.values() if trajectory in level]
    held = [replica.assigned[trajectory] for replica in run.controller.fleet.up() if trajectory in replica.assigned]
    assert len(levels) + len(held) == 1
    return (*levels, *held)[0].left


def test_what_is_left_is_the_mean_of_what_is_longer_wherever_a_trajectory_is():
    run = scripted(sync=policy("sync", "interrupting"), steps=2)
    run.go(c.Tick(), leave=(c.Pull, c.Route))
    assert left_of(run, "0.0") is None  # a median alone says nothing of what is left after it
    run.go(c.Predicted(0, 600.0, p90=2_000.0), leave=(c.Pull, c.Route))
    assert left_of(run, "0.0") == pytest.approx(mean_left(600.0, 2_000.0, 0), rel=1e-2)  # its group waits
    run.catch_up(c.Pull, leave=(c.Route,))
    assert left_of(run, "0.0") == pytest.approx(mean_left(600.0, 2_000.0, 0), rel=1e-2)  # it runs
    for generated in (300, 600, 5_000):
        state = run.controller.ledger.trajectories["0.0"]
        run.go(c.Interrupted(state.replica, "0.0", generated), leave=(c.Pull, c.Route))
        left = left_of(run, "0.0")
        assert left == pytest.approx(mean_left(600.0, 2_000.0, generated), rel=2e-2)
        assert left > max(1.0, 600.0 - generated)
        if run.controller.ledger.trajectories["0.0"].replica is None:
            run.later(1.0, leave=(c.Pull, c.Route))
        assert run.controller.ledger.trajectories["0.0"].replica is not None
        assert left_of(run, "0.0") == left
    run.go(c.Predicted(0, 600.0), leave=(c.Pull, c.Route))
    assert left_of(run, "0.0") is None  # what is known of it now
    replayed(run)


def test_nothing_is_left_beyond_the_longest_response():
    run = scripted(sync=policy("sync", "interrupting"), steps=2, max_tokens=1_024)
    run.go(c.Tick(), leave=(c.Pull, c.Route))
    run.go(c.Predicted(0, 600.0, p90=2_000.0), leave=(c.Pull, c.Route))
    assert left_of(run, "0.0") == pytest.approx(mean_left(600.0, 2_000.0, 0, 1_024), rel=1e-2)
    run.catch_up(c.Pull, leave=(c.Route,))
    for generated in (600, 1_000, 1_024):
        state = run.controller.ledger.trajectories["0.0"]
        run.go(c.Interrupted(state.replica, "0.0", generated), leave=(c.Pull, c.Route))
        expected = max(1.0, mean_left(600.0, 2_000.0, generated, 1_024))
        assert left_of(run, "0.0") == pytest.approx(expected, rel=2e-2)
        if run.controller.ledger.trajectories["0.0"].replica is None:
            run.later(1.0, leave=(c.Pull, c.Route))
    replayed(run)


def test_what_is_left_of_one_that_runs_follows_what_its_replica_generates():
    run = scripted([], steps=2)
    run.go(c.Tick(), leave=(c.Route,))
    run.go(*(c.Predicted(prompt, 600.0, p90=2_000.0) for prompt in range(10)), leave=(c.Route,))
    replica = run.controller.ledger.trajectories["0.0"].replica
    held = len(run.controller.fleet.replicas[replica].assigned)
    left = [left_of(run, "0.0")]
    assert left[0] == pytest.approx(mean_left(600.0, 2_000.0, 0), rel=1e-2)

    def snapshot(after_s, tokens_per_s, running=held):
        run.now += after_s
        seq = run.controller.outbox.seq
        run.go(c.Snapshot(replica, 0.5, running, held - running, 0, 0, seq, tokens_per_s), leave=(c.Route,))
        return left_of(run, "0.0")

    assert snapshot(7.0, 900.0) == left[0]  # the first says nothing of when it began
    assert snapshot(5.0, held * 60.0) == pytest.approx(mean_left(600.0, 2_000.0, 300), rel=2e-2)
    assert snapshot(5.0, 0.0) == pytest.approx(mean_left(600.0, 2_000.0, 300), rel=2e-2)
    assert snapshot(10.0, held * 60.0) == pytest.approx(mean_left(600.0, 2_000.0, 900), rel=2e-2)
    run.go(c.Interrupted(replica, "0.0", 650), leave=(c.Route,))  # now it is known
    assert left_of(run, "0.0") == pytest.approx(mean_left(600.0, 2_000.0, 650), rel=2e-2)
    run.down("replica", replica, leave=(c.Route,))
    assert run.controller.fleet.replicas[replica].assigned.generated == 0
    replayed(run)


# ---- asking -----------------------------------------------------------------------------------------------------------


def test_without_a_ranker_nobody_is_asked():
    run = scripted(ranker=False)
    run.go(c.Tick())
    assert "ranker" not in {start.role for start in of(c.Start, run.given)}
    assert asked(run.given) == []
    assert reasons(run) == {Why.UNPREDICTED}


def test_prompts_are_asked_for_before_they_are_launched_each_once_and_no_more_than_may_be_open():
    run = scripted([100.0] * 200, steps=6, admission=policy("admission", "inherent"))
    run.go(c.Tick(), leave=(c.Route,))
    launched = {group.prompt for group in run.controller.ledger.groups.values()}
    assert launched == set(range(20))  # `buffer_groups`
    assert set(asked(run.given)) == set(range(40))
    while not run.view.finished:
        run.later(1.0, leave=(c.Route,))
        run.catch_up(leave=(c.Route,))
        ahead = len(asked(run.given)) - run.view.counts.admitted
        assert ahead <= 20
    assert run.view.counts.trained == 60
    assert sorted(asked(run.given)) == list(range(60))  # no more than the run launches
    assert Why.UNPREDICTED not in reasons(run)
    replayed(run)


def test_a_source_that_cannot_look_ahead_has_its_prompts_asked_for_once_they_are_launched():
    class Blind:
        """A source without `ahead`."""

        def __init__(self, source):
            self._source = source

        def __getattr__(self, name):
            if name == "ahead":
                raise AttributeError(name)
            return getattr(self._source, name)

    run = scripted()
    run.controller.predictions._source = Blind(run.controller.source)
    run.go(c.Tick(), leave=(c.Route,))
    assert asked(run.given) == list(range(10))
    assert Why.UNPREDICTED not in reasons(run)  # the answers came before the weights


def test_a_prompt_that_comes_again_is_not_asked_for_again():
    batching = policy("batching", "plain", samples=2, deferrals=1)
    run = scripted(
        [300.0] * 100, batching=batching, admission=policy("admission", "inherent"), steps=3, scoring_attempts=1
    )
    run.go(c.Tick(), leave=(c.Score,))
    first = next(iter(of(c.Score, run.left))).trajectories[0]
    run.go(c.ScoringFailed(first, "the sandbox is away"), leave=(c.Score,))
    assert run.view.counts.deferred == 1
    for _ in range(30):
        run.catch_up()
        run.later(1.0)
    assert run.view.finished
    counts = {prompt: asked(run.given).count(prompt) for prompt in asked(run.given)}
    assert set(counts.values()) == {1}


# ---- a ranker that is late, dead or wrong ------------------------------------------------------------------------------


def test_a_ranker_that_died_is_asked_again_for_what_is_missing():
    run = scripted()
    run.go(c.Tick(), leave=(c.Route, c.Predict, c.Pull))
    before = asked(run.given)
    assert before == list(range(10))
    run.go(*(c.Predicted(prompt, LENGTHS[prompt]) for prompt in (0, 1, 2)), leave=(c.Route, c.Pull))
    run.forget(c.Predict)
    run.down("ranker", leave=(c.Route, c.Predict, c.Pull))
    assert [restart.role for restart in of(c.Restart, run.given)] == ["ranker"]
    assert asked(run.given)[len(before) :] == list(range(3, 10))
    run.catch_up(c.Predict, leave=(c.Route, c.Pull))
    run.catch_up(c.Pull, leave=(c.Route,))
    assert sorted(prompts(run))[0] == [1, 1]
    replayed(run)


def test_while_the_ranker_is_down_the_run_goes_on_without_it():
    run = scripted(steps=2)
    run.go(c.Tick(), leave=("ranker",))
    for _ in range(5):
        run.later(1.0)
    assert run.view.finished
    assert run.view.counts.trained == 20
    assert reasons(run) == {Why.UNPREDICTED}
    assert held(run) == set()


def test_launches_are_the_same_at_the_same_time_however_late_a_ranker_answers():
    """Where routing does not use predictions; where it does, what it knows decides which replica, and not when."""

    def launches(every_s):
        run = scripted(
            [100.0] * 200,
            steps=5,
            admission=policy("admission", "inherent"),
            routing=policy("routing", "least-loaded"),
            replica_batch=4,
        )
        left = (c.Route, c.Predict)
        found = [run.go(c.Tick(), leave=left)]
        for second in range(200):
            if every_s and second % every_s == 0:
                run.catch_up(c.Predict, leave=left)
            found.append([*run.catch_up(c.Route, leave=left), *run.later(1.0, leave=left)])
        assert run.view.finished
        replayed(run)
        routes = [[(route.replica, route.trajectories) for route in of(c.Route, given)] for given in found]
        return routes, run.view.counts.unpredicted

    soon, late, never = [launches(every_s) for every_s in (1, 6, None)]
    assert soon[0] == late[0] == never[0]
    assert soon[1] < late[1] < never[1] == 100


def test_a_ranker_that_always_dies_is_given_up_and_not_the_run():
    run = scripted(steps=2)
    run.go(c.Tick(), leave=(c.Predict, c.Route))
    restarts = run.controller.spec.recovery.max_restarts
    for _ in range(restarts + 1):
        run.forget(c.Predict)
        run.down("ranker", leave=(c.Predict, c.Route))
    assert len(of(c.Restart, run.given)) == restarts
    assert run.controller.members.get("ranker") is None
    run.catch_up(c.Route)
    for _ in range(5):
        run.later(1.0)
    assert run.view.finished
    assert run.controller.failure is None
    replayed(run)


def test_one_that_says_something_in_between_is_restarted_again_and_again():
    run = scripted()
    run.go(c.Tick(), leave=(c.Route,))
    for _ in range(10):
        run.down("ranker", leave=(c.Route,))
        run.go(c.Predicted(0, 12.0), leave=(c.Route,))
    assert run.view.restarts("ranker") == 10


def test_what_a_ranker_has_no_length_for_is_regular_and_not_asked_for_again():
    run = scripted(LENGTHS[:5], steps=2)
    run.go(c.Tick(), leave=(c.Route,))
    found = {prompt: why for given in routed(run).values() for prompt, why in given}
    assert {prompt for prompt, why in found.items() if why is Why.UNPREDICTED} == set(range(5, 10))
    run.catch_up()
    for _ in range(5):
        run.later(1.0)
    assert sorted(asked(run.given)) == list(range(20))
    replayed(run)


def test_a_ranker_that_has_learned_is_asked_again_for_what_it_had_no_length_for():
    run = scripted(LENGTHS[:5])
    run.go(c.Tick(), leave=(c.Route, c.Pull))
    run.lengths = dict(enumerate(LENGTHS))
    first = asked(run.given)
    run.go(c.Activity("replica", "r0", "generating", 1), leave=(c.Route, c.Pull))
    assert asked(run.given) == first  # nobody else can have learned
    run.go(c.Activity("ranker", "0", "trained", 1), leave=(c.Route, c.Pull))
    assert asked(run.given)[len(first) :] == list(range(5, 10))
    run.go(c.Activity("ranker", "0", "updated", 2), leave=(c.Route, c.Pull))
    assert run.view.ranker_updates == 1
    run.catch_up(c.Pull, leave=(c.Route,))
    assert Why.UNPREDICTED not in reasons(run)
    replayed(run)


def test_a_ranker_that_has_learned_anew_is_asked_again_for_what_has_not_started():
    run = scripted([600.0] * 40, steps=4, admission=policy("admission", "inherent"), replica_batch=4)
    run.go(c.Tick(), leave=(c.Route,))
    started = {group.prompt for group in run.controller.ledger.groups.values() if group.version is not None}
    assert 0 < len(started) < 20
    first = asked(run.given)
    assert len(first) == 40
    run.lengths = dict.fromkeys(range(40), 900.0)
    run.go(c.Activity("ranker", "0", "updated", 1), leave=(c.Route,))
    again = asked(run.given)[len(first) :]
    assert sorted(again) == sorted(set(range(40)) - started)
    tokens = run.controller.ledger.predictions.tokens
    assert {tokens[prompt] for prompt in started} == {600.0}
    assert {tokens[prompt] for prompt in again} == {900.0}
    run.later(1.0, leave=(c.Route,))
    assert len(asked(run.given)) == len(first) + len(again)
    replayed(run)


def test_until_it_answers_what_was_predicted_before_counts():
    run = scripted([600.0] * 40, steps=4, admission=policy("admission", "inherent"), replica_batch=4)
    run.go(c.Tick(), leave=(c.Route,))
    run.go(c.Activity("ranker", "0", "updated", 1), leave=(c.Route, c.Predict))
    run.catch_up(c.Route, leave=(c.Predict,))
    assert run.view.counts.unpredicted == 0
    run.down("ranker", leave=(c.Predict,))  # what it was asked for is asked of the next one
    assert len(asked(run.given)) > 40
    replayed(run)


def test_after_a_crash_of_the_driver_the_ranker_is_asked_for_what_is_missing():
    run = scripted()
    run.go(c.Tick(), leave=(c.Route, c.Predict))
    run.left.clear()
    run.go(c.Resumed((0,)), leave=(c.Route,))
    assert asked(run.given).count(4) == 2
    assert run.controller.ledger.predictions.tokens[4] == LENGTHS[4]
    replayed(run)


# ---- what is kept -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("known", [(), (0, 3, 4), tuple(range(40))])
def test_a_run_ends_with_any_of_them_and_forgets_those_of_prompts_that_are_done(known):
    run = scripted(steps=3)
    run.lengths = {prompt: 100.0 + 900 * (prompt % 7) for prompt in known}
    run.go(c.Tick())
    for _ in range(20):
        run.later(1.0)
    assert run.view.finished
    assert run.view.counts.trained == 30
    still = {group.prompt for group in run.controller.ledger.groups.values()}  # the last checkpoint is not durable yet
    assert held(run) <= still
    assert set(run.controller.ledger.predictions.tokens) == set(known) & still
    replayed(run)


def test_a_prediction_that_comes_after_its_prompt_was_done_is_forgotten_too():
    run = scripted(steps=3)
    run.go(c.Tick(), leave=(c.Predict,))
    for _ in range(20):
        run.later(1.0, leave=(c.Predict,))
    assert run.view.counts.trained == 30
    done = set(range(30)) - {group.prompt for group in run.controller.ledger.groups.values()}
    assert done
    run.lengths = dict.fromkeys(range(30), 70.0)
    run.catch_up()
    assert not held(run) & done
    replayed(run)


def test_a_prediction_that_nobody_asked_for_is_not_kept():
    run = scripted()
    run.go(c.Tick(), leave=(c.Route,))
    run.go(c.Predicted(1_000, 70.0), leave=(c.Route,))
    assert 1_000 not in held(run)
