"""Where members stand: the trainer apart from replicas, the others spread, nobody on a machine that is gone."""

from collections import Counter

from scripted import ON_THREE_MACHINES, Scripted, of, policy, spec

from tailrace import contracts as c
from tailrace.controller.members import machine_for


def test_a_replica_leaves_the_trainer_its_machine_while_there_is_another():
    standing = [("trainer", "0")]
    for _ in range(4):
        standing.append(("replica", machine_for("replica", ["0", "1", "2"], standing)))
    assert Counter(where for role, where in standing if role == "replica") == {"1": 2, "2": 2}
    assert machine_for("replica", ["0"], standing) == "0"


def test_a_trainer_goes_where_fewest_replicas_stand():
    standing = [("replica", "1"), ("replica", "2"), ("replica", "1"), *[("relay", "2")] * 3]
    assert machine_for("trainer", ["1", "2"], standing) == "2"
    assert machine_for("trainer", ["0", "1", "2"], []) == "0"


def on_machines(recovery="role-based"):
    run = Scripted(spec(machines=("0", "1", "2"), recovery=policy("recovery", recovery)), relays=3)
    run.machines = dict(ON_THREE_MACHINES)
    return run, run.go(c.Tick(), leave=(c.Step,))


def test_at_the_start_data_and_scorer_stand_beside_the_controller():
    _, given = on_machines()
    places = {(one.role, one.id): one.place.machine for one in of(c.Start, given)}
    assert places == ON_THREE_MACHINES | {("data", "0"): "", ("scorer", "0"): ""}


def gone(recovery):
    run, _ = on_machines(recovery)
    lost = c.Down("replica", "r0", "its machine 1 is gone", c.Cause.MACHINE, "1")
    given = run.go(lost, leave=("relay", "replica", "trainer", "data", "scorer", c.Step))
    return {(one.role, one.id): one.place.machine for one in of(c.Restart, given)}


def test_members_of_a_machine_that_is_gone_start_on_the_others():
    assert gone("role-based") == {("relay", "1"): "0", ("replica", "r0"): "2"}


def test_both_are_replaced_once_though_both_are_missed_at_once():
    run, _ = on_machines()
    lost = [
        c.Down(*member, "its machine 1 is gone", c.Cause.MACHINE, "1") for member in (("relay", "1"), ("replica", "r0"))
    ]
    given = run.go(*lost, leave=("relay", "replica", c.Step))
    assert Counter((one.role, one.id) for one in of(c.Restart, given)) == {("relay", "1"): 1, ("replica", "r0"): 1}


def test_a_member_is_replaced_though_it_stood_on_another_machine_than_it_was_given():
    """A host starts a member elsewhere if the machine is gone that it was given, and that may die before the member is up."""
    run, _ = on_machines()
    given = run.go(
        c.Down("relay", "1", "its machine 2 is gone", c.Cause.MACHINE, "2"), leave=("relay", "replica", c.Step)
    )
    assert {one.id for one in of(c.Restart, given) if one.role == "relay"} == {"1", "2"}  # relay 2 does stand there


def test_a_member_that_a_host_places_is_not_waited_for_if_its_machine_fails_again():
    """A host that has no other machine starts it there again, and it does not pass the checks again."""
    run = Scripted(spec(recovery=policy("recovery", "role-based")))
    run.go(c.Tick(), leave=(c.Step,))
    for _ in range(2):
        unfit = c.Down("trainer", "0", "machine a did not pass the check 'disk'", c.Cause.MACHINE, "a")
        given = run.go(unfit, leave=("trainer", "replica", "data", "scorer", "relay"))
        assert [one.role for one in of(c.Restart, given)].count("trainer") == 1


def test_a_task_that_restarts_because_of_a_machine_does_not_use_it_again():
    places = gone("restart-task")
    assert places.keys() >= ON_THREE_MACHINES.keys()
    assert "1" not in places.values()


def test_a_hybrid_stands_where_the_trainer_does_and_the_trainer_comes_back_to_it():
    standing = [("trainer", "1"), ("relay", "0"), ("relay", "1")]
    assert machine_for("hybrid", ["0", "1", "2"], standing) == "1"
    assert machine_for("replica", ["0", "1", "2"], standing) == "2"
    assert machine_for("trainer", ["0", "1"], [("hybrid", "1"), ("replica", "0")]) == "1"
    assert machine_for("hybrid", ["0", "2"], [("trainer", "1"), ("hybrid", "2")]) == "2"  # its machine is gone
