"""A machine crashed: the store on its disk lacks what the log has, or has what the log lacks."""

import pytest
from scripted import Scripted, of, spec

from tailrace import contracts as c


def resumed(run, held, order, *, checkpoints=(0,)):
    """The run is resumed; the data role and the trainer come up in this order."""
    run.left.clear()
    run.held = tuple(held)
    run.go(c.Resumed(checkpoints), leave=("data", "trainer"))
    for role in order:
        run.catch_up(role)
    run.catch_up()
    return run


ORDERS = [("data", "trainer"), ("trainer", "data")]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("phase", ["generating", "buffered", "training", "trained"])
def test_a_group_of_which_the_store_lost_a_scored_trajectory_begins_anew(order, phase):
    run = Scripted(spec())
    run.go(c.Tick(), leave={"generating": (c.Score,), "trained": (c.Checkpoint,)}.get(phase, (c.Step,)))
    if phase == "generating":
        score = run.left[0]
        run.go(*(c.Scored(name, 1.0, score.seq) for name in score.trajectories if name.endswith(".0")))
    ledger = run.controller.ledger
    scored = [state for state in ledger.trajectories.values() if state.phase == "scored"]
    lost = next(state for state in scored if ledger.groups[state.group].phase == phase)
    mates = set(ledger.groups[lost.group].members)
    known = {state.id for state in ledger.trajectories.values() if state.phase in ("scored", "done")} - {lost.id}
    before = len(run.calls)
    resumed(run, known, order)
    given = [command for _, _, commands in run.calls[before:] for command in commands]
    routed = {ref.trajectory for route in of(c.Route, given) for ref in route.trajectories}
    assert mates <= routed
    assert {name for abort in of(c.Abort, given) for name in abort.trajectories} == mates
    assert not routed & (known - mates), "what the store holds is not generated again"
    assert run.view.failure is None
    assert run.view.finished
    assert run.view.counts.trained == 6


@pytest.mark.parametrize("order", ORDERS)
def test_a_group_that_a_checkpoint_has_stays_trained(order):
    run = Scripted(spec())
    run.go(c.Tick(), leave=(c.Step,))
    run.catch_up(c.Step, leave=(c.Step,))
    ledger = run.controller.ledger
    trained = {state.id for state in ledger.batch(1)}
    known = [state.id for state in ledger.trajectories.values() if state.phase in ("scored", "done")]
    before = len(run.calls)
    resumed(run, [name for name in known if name not in trained], order, checkpoints=(0, 1))
    given = [command for _, _, commands in run.calls[before:] for command in commands]
    assert not of(c.Abort, given)
    assert not trained & {ref.trajectory for route in of(c.Route, given) for ref in route.trajectories}
    assert run.view.counts.trained == 6


@pytest.mark.parametrize("order", ORDERS)
def test_a_complete_trajectory_that_the_log_does_not_know_as_begun_begins_anew(order):
    run = Scripted(spec())
    run.go(c.Tick(), leave=(c.Route,))
    names = list(run.controller.ledger.trajectories)[:2]
    run.left.clear()
    run.go(c.Resumed((0,)), leave=("replica",))  # the store holds nothing: all wait to begin
    assert all(run.controller.ledger.trajectories[name].version is None for name in names)
    before = len(run.calls)
    resumed(run, names, order)
    given = [command for _, _, commands in run.calls[before:] for command in commands]
    assert {name for abort in of(c.Abort, given) for name in abort.trajectories} == set(names)
    assert run.view.failure is None
    assert run.view.finished
    assert run.view.counts.trained == 6


def test_a_trajectory_that_ended_unseen_counts_as_one_that_ended():
    run = Scripted(spec())
    run.go(c.Tick(), leave=(c.Route,))
    trainer = run.controller.trainer
    name = next(iter(run.controller.ledger.trajectories))
    assert not trainer.staleness_at_completion
    run.left.clear()
    run.held = (name,)
    run.go(c.Resumed((0,)), leave=("replica", c.Score))
    assert trainer.staleness_at_completion == {0: 1}
    assert [score.trajectories for score in of(c.Score, run.left)] == [(name,)]


def test_what_the_store_holds_of_nobody_changes_nothing():
    run = Scripted(spec())
    run.go(c.Tick(), leave=(c.Route,))
    resumed(run, ["99.0"], ORDERS[0])
    assert run.view.finished, run.view.failure
    assert run.view.counts.trained == 6
