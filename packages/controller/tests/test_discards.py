"""What is dropped and begun anew waits until the store has dropped it; and nothing of that is forgotten when somebody dies."""

from scripted import Scripted, of, policy, spec

from tailrace import contracts as c
from tailrace.controller.spec import EvaluationPlan


def stranded_evaluation():
    """A run in which the replica that answered an evaluation is down, and its answers begin anew: versions mix."""
    pipeline = spec(
        sync=policy("sync", "interrupting"),
        provisioning=policy("provisioning", "static", count=2),
        evaluation=EvaluationPlan(size=2, modes=("sampled",)),
        batch_groups=20,
        buffer_groups=20,
    )
    run = Scripted(pipeline)
    given = run.go(c.Tick(), leave=(c.Route,))
    home = next(route.replica for route in of(c.Route, given) if route.trajectories[0].purpose is c.Purpose.EVAL)
    given = run.down("replica", home, leave=(c.Route, c.Abort, "replica"))
    return run, of(c.Abort, given)


def evaluated(commands):
    return {ref.trajectory for route in of(c.Route, commands) for ref in route.trajectories if ref.trajectory[0] == "e"}


def test_what_begins_anew_is_routed_only_after_the_store_dropped_it():
    run, aborts = stranded_evaluation()
    names = {name for abort in aborts for name in abort.trajectories}
    assert names == {"e0.sampled.0", "e0.sampled.1"}
    assert not evaluated(run.later(1.0, leave=(c.Route,)))
    assert not evaluated(run.go(c.Discarded(aborts[0].seq + 1_000), leave=(c.Route,)))
    assert evaluated(run.go(*(c.Discarded(abort.seq) for abort in aborts), leave=(c.Route,))) == names


def test_what_is_being_dropped_twice_waits_for_both_answers():
    run, aborts = stranded_evaluation()
    names = [name for abort in aborts for name in abort.trajectories]
    discards, ledger = run.controller.discards, run.controller.ledger
    discards.begin_anew([ledger.trajectories[name] for name in names], c.Reason(c.Why.VERSION_GONE))
    again = of(c.Abort, run.controller.outbox.take())
    assert [name for abort in again for name in abort.trajectories] == names
    assert not evaluated(run.go(*(c.Discarded(abort.seq) for abort in aborts), leave=(c.Route,)))
    assert evaluated(run.go(*(c.Discarded(abort.seq) for abort in again), leave=(c.Route,))) == set(names)


def test_a_store_that_died_before_it_answered_is_told_again():
    run, aborts = stranded_evaluation()
    again = of(c.Abort, run.down("data", leave=(c.Route, c.Abort)))
    assert [abort.trajectories for abort in again] == [abort.trajectories for abort in aborts]
    assert not {abort.seq for abort in again} & {abort.seq for abort in aborts}
    old = [c.Discarded(abort.seq) for abort in aborts]
    assert not evaluated(run.go(*old, leave=(c.Route,)))  # the answer of one that is dead
    assert evaluated(run.go(*(c.Discarded(abort.seq) for abort in again), leave=(c.Route,)))


def test_a_driver_that_died_before_the_answer_has_it_dropped_after_all():
    run, aborts = stranded_evaluation()
    names = {name for abort in aborts for name in abort.trajectories}
    run.held = tuple(names)  # the store still has them, complete
    given = run.go(c.Resumed((0,)), leave=(c.Route, c.Abort))
    again = of(c.Abort, given)
    assert {name for abort in again for name in abort.trajectories} == names
    assert not evaluated(given)
    assert evaluated(run.go(*(c.Discarded(abort.seq) for abort in again), leave=(c.Route,))) == names


def test_the_run_does_not_end_before_everything_is_dropped():
    run = Scripted(spec(batching=policy("batching", "redundant", samples=1, surplus_samples=1)))
    run.go(c.Tick(), leave=(c.Abort,))
    assert run.view.step == run.view.steps
    assert not run.view.finished
    run.catch_up()
    assert run.view.finished
