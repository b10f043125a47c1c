"""A deterministic pipeline's groups start together: which replica has which does not depend on whose answer came first."""

import random

import pytest
from scripted import Scripted, of, policy, spec

from tailrace import contracts as c
from tailrace.controller.spec import EvaluationPlan

REPLICAS = 3


def pipeline(**changes):
    return spec(
        admission=policy("admission", "on-policy"),
        batching=policy("batching", "plain", samples=2, seeded=True),
        routing=policy("routing", "round-robin"),
        sync=policy("sync", "when-drained"),
        provisioning=policy("provisioning", "static", count=REPLICAS),
        sampler=policy("sampler", "in-order"),
        batch_groups=6,
        replica_batch=4,
        buffer_groups=None,
        **{"deterministic": True, **changes},
    )


def routes(run):
    """What each replica was given at once to train on, in order: for each replica a list of batches."""
    given = {}
    for route in of(c.Route, run.given):
        refs = [(ref.prompt, ref.sample) for ref in route.trajectories if ref.purpose is c.Purpose.TRAIN]
        if refs:
            given.setdefault(route.replica, []).append(refs)
    return given


def driven(seed, **changes):
    """A whole run in which answers come one at a time, in an order that a seed draws."""
    draw = random.Random(seed)
    run = Scripted(pipeline(**changes))
    waiting = [c.Tick()]
    while waiting:
        event = waiting.pop(draw.randrange(len(waiting)))
        for command in run.handle(event):
            waiting += run.answers(command)
        run.now += 0.01
    return run


@pytest.mark.parametrize("plan", [EvaluationPlan(), EvaluationPlan(size=3, every=1, modes=("greedy",))])
def test_each_replica_has_the_same_in_one_route_whatever_came_first(plan):
    found = [routes(driven(seed, evaluation=plan)) for seed in range(40)]
    share = [[(prompt, sample) for prompt in (first, first + 3) for sample in (0, 1)] for first in range(3)]
    assert [found[0][f"r{index}"][0] for index in range(REPLICAS)] == share
    for seed, each in enumerate(found):
        assert each == found[0], f"seed {seed}"
        assert all(len(batches) == 3 for batches in each.values())


def test_without_it_the_order_of_answers_decides():
    assert len({str(routes(driven(seed, deterministic=False))) for seed in range(40)}) > 1


def test_nothing_starts_beside_an_evaluation():
    run = Scripted(pipeline(evaluation=EvaluationPlan(size=3, every=1, modes=("greedy",))))
    given = of(c.Route, run.go(c.Tick(), leave=(c.Route,)))
    assert {ref.purpose for route in given for ref in route.trajectories} == {c.Purpose.EVAL}
    assert len(of(c.Route, run.catch_up(leave=(c.Route,)))) == REPLICAS


def test_a_replica_that_is_down_holds_the_others_back_only_until_it_is_known_to_be_gone():
    run = Scripted(pipeline())
    run.go(c.Tick(), leave=(c.Pull,))
    (first, *others) = [command for command in run.left if isinstance(command, c.Pull)]
    run.left = [first]
    given = run.go(*(event for pull in others for event in run.answers(pull)), leave=(c.Route,))
    assert not of(c.Route, given), "one replica still pulls"
    given = run.down("replica", first.replica, leave=("replica", c.Route))
    assert {route.replica for route in of(c.Route, given)} == {pull.replica for pull in others} or not of(
        c.Route, given
    )
    run.forget(c.Pull)
    while run.left:
        run.catch_up()
    assert run.view.version == 3, "the run did not end"


def test_an_engine_keeps_seeds_where_launches_have_them():
    assert policy("batching", "plain", seeded=True).draws_again() is True
    assert policy("batching", "plain").draws_again() is False
