"""What observers see of a run: who stands where, what each replica does, and where trajectories are."""

from scripted import Scripted, of, spec

from tailrace import contracts as c
from tailrace.controller.spec import EvaluationPlan
from tailrace.controller.view import HeldTrajectories, Whereabouts

SEATS = {
    ("trainer", "0"): (c.ProcessSeat("t", (0,)), c.ProcessSeat("t", (1,))),
    ("replica", "r0"): (c.ProcessSeat("a", (0,)),),
}


def begun(**changes):
    run = Scripted(spec(**changes))
    run.seats = SEATS
    run.go(c.Tick(), leave=(c.Route, c.Step))
    return run


def test_each_process_with_devices_has_its_seat_while_it_is_up():
    run = begun()
    (first, second), (only,) = SEATS.values()
    assert run.view.seats() == [("trainer 0", first), ("trainer 0.1", second), ("replica r0", only)]
    run.down("replica", "r0", leave=("replica", c.Route))
    assert run.view.seats() == [("trainer 0", first), ("trainer 0.1", second)]


def test_a_seat_tells_its_share_and_whether_it_computes_beside_others():
    assert str(c.ProcessSeat("m", (0, 1))) == "GPU 0, 1 of machine m"
    assert str(c.ProcessSeat("m", (3,), share=0.2)) == "GPU 3 of machine m (0.2 of each)"
    assert str(c.ProcessSeat("m", (3,), share=0.2, mps=True)) == "GPU 3 of machine m (0.2 of each, by MPS)"


def test_notes_are_those_of_members_that_are_up_and_noted_are_all():
    run = begun()
    run.go(c.Up("trainer", "0", notes=("slower",)), c.Up("replica", "r0", notes=("cold", "small")), leave=(c.Route,))
    first, others = "trainer 0: slower", ["replica r0: cold", "replica r0: small"]
    assert run.view.notes() == run.view.noted == [first, *others]
    run.go(c.Up("trainer", "0"), leave=(c.Route,))
    assert (run.view.notes(), run.view.noted) == (others, [first, *others])
    run.down("replica", "r0", leave=("replica", c.Route))
    assert (run.view.notes(), run.view.noted) == ([], [first, *others])


def test_a_replica_generates_while_it_holds_something_and_is_idle_then():
    run = begun(buffer_groups=2)
    assert [row.doing for row in run.view.replicas()] == ["generating", "generating"]
    routed = [(route.replica, ref.trajectory) for route in of(c.Route, run.given) for ref in route.trajectories]
    run.go(*(c.Finished(replica, name, 3) for replica, name in routed if replica == "r0"), leave=(c.Route,))
    assert [row.doing for row in run.view.replicas()] == ["idle", "generating"]


def test_training_trajectories_are_counted_by_place_and_version_and_evaluations_are_not():
    run = begun(evaluation=EvaluationPlan(size=1, modes=("greedy",)), steps=12, buffer_groups=12)
    ledger = run.controller.ledger
    training = [state for state in ledger.trajectories.values() if state.purpose is c.Purpose.TRAIN]
    assert len(training) < len(ledger.trajectories)
    assert run.view.whereabouts() == [HeldTrajectories(Whereabouts.REPLICA, 0, len(training), 0)]
    for replica in ("r0", "r1"):
        run.down("replica", replica, leave=("replica", c.Route))
    ledger.restarted(training[0])  # it begins anew
    assert run.view.whereabouts() == [
        HeldTrajectories(Whereabouts.POOL, None, 1, 0),
        HeldTrajectories(Whereabouts.POOL, 0, len(training) - 1, 0),
    ]
