"""Predicted lengths reach the routing policy whenever they come, and nothing waits for them."""

import math

import pytest
from scripted import Scripted, of, policy, spec

from tailrace import contracts as c
from tailrace.contracts import Why
from tailrace.pipeline.controller.controller import Controller
from tailrace.pipeline.errors import ControllerError
from tailrace.pipeline.spec import EvaluationPlan

COST = {"k1": 0.0, "k2": 0.0, "k3": 4e-4, "k4": 0.01}
LENGTHS = [610, 9_200, 580, 720, 640, 8_100, 500, 690, 550, 660]  # of prompts 0 to 9; two of ten are the tail


def pipeline(**changes):
    """Three replicas, and ten groups of two in a batch."""
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
        }
        | changes
    )


def predicted(lengths=LENGTHS, first=0):
    return [c.Predicted(first + prompt, tokens) for prompt, tokens in enumerate(lengths)]


def routed(run):
    """What each replica was given, in order: prompts and reasons."""
    found = {}
    for route in of(c.Route, run.given):
        for index, ref in enumerate(route.trajectories):
            found.setdefault(route.replica, []).append((ref.prompt, route.reason(index).why))
    return found


def prompts(run):
    return [[prompt for prompt, _ in given] for _, given in sorted(routed(run).items())]


def replayed(run, pipeline):
    """A controller that is told what a run's was, and gives the same commands; no one is asked for predictions."""
    controller = Controller(pipeline)
    for now, events, commands in run.calls:
        assert controller.handle_all(events, now) == commands
    return controller


def test_what_is_predicted_ahead_decides_where_a_prompt_runs():
    run = Scripted(pipeline())
    run.go(*predicted(), c.Tick(), leave=(c.Route,))
    assert sorted(prompts(run)) == [[1, 1], [3, 3, 7, 7, 9, 9, 4, 4, 0, 0, 2, 2, 8, 8, 6, 6], [5, 5]]
    assert {why for _, why in routed(run)[of(c.Route, run.given)[0].replica]} == {Why.LONG_TAIL}
    assert replayed(run, pipeline()).state() == run.controller.state()


def test_a_prediction_that_comes_late_counts_for_what_still_waits():
    run = Scripted(pipeline(replica_batch=2))
    run.go(c.Tick(), leave=(c.Route,))
    first = sorted(prompts(run))
    assert [len(given) for given in first] == [2, 2, 2]
    assert {why for given in routed(run).values() for _, why in given} == {Why.UNPREDICTED}
    assert run.go(*predicted()) == []  # nothing is decided for a prediction's sake
    views = {view.trajectory: view for replica in run.controller.fleet.up() for view in replica.assigned.values()}
    assert {view.predicted for view in views.values()} == {610, 9_200, 580}  # those that run already
    run.catch_up(leave=(c.Route,))
    waiting = [group for group in range(3, 10) if [group] * 2 not in first]
    later = [each for given in routed(run).values() for each in given if each[0] in waiting]
    assert (5, Why.LONG_TAIL) in later
    assert not any(why is Why.UNPREDICTED for _, why in later)
    assert replayed(run, pipeline(replica_batch=2)).state() == run.controller.state()


def test_a_later_prediction_replaces_an_earlier_one():
    run = Scripted(pipeline())
    run.go(*predicted([8_000] * 10), *predicted(), c.Tick(), leave=(c.Route,))
    assert sorted(prompts(run))[0] == [1, 1]


def test_what_goes_back_to_the_pool_keeps_its_prediction_and_takes_a_new_one():
    run = Scripted(pipeline(sync=policy("sync", "interrupting")))
    run.go(*predicted(), c.Tick(), leave=(c.Route,))
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


@pytest.mark.parametrize("known", [(), (0, 3, 4), tuple(range(40))])
def test_a_run_ends_with_any_of_them_and_forgets_those_of_prompts_that_are_done(known):
    run = Scripted(pipeline(steps=3))
    run.go(*(c.Predicted(prompt, 100.0 + 900 * (prompt % 7)) for prompt in known), c.Tick())
    for _ in range(20):
        run.later(1.0)
    assert run.view.finished
    assert run.view.counts.trained == 30
    still = {group.prompt for group in run.controller.ledger.groups.values()}  # the last checkpoint is not durable yet
    assert set(run.controller.ledger.predictions) == set(known) & (still | set(range(30, 40)))


def test_an_evaluation_has_prompts_of_its_own():
    run = Scripted(pipeline(evaluation=EvaluationPlan(size=2, every=1)))
    run.go(*predicted(), c.Tick(), leave=(c.Route,))
    states = run.controller.ledger.trajectories.values()
    views = [(state, run.controller.ledger.view(state)) for state in states]
    assert {view.predicted for state, view in views if state.purpose is c.Purpose.EVAL} == {None}
    assert all(view.predicted == LENGTHS[state.prompt] for state, view in views if state.purpose is c.Purpose.TRAIN)


@pytest.mark.parametrize("tokens", [0.0, -3.0, math.nan, math.inf])
def test_a_length_that_cannot_be_is_refused(tokens):
    run = Scripted(pipeline())
    with pytest.raises(ControllerError, match=r"tokens predicted for prompt 4, expected a finite number of at least 1"):
        run.go(c.Predicted(4, tokens))
