"""Warm standbys: a trainer that lost its machine takes a replica's, whose work goes on elsewhere."""

import pytest
from scripted import ON_THREE_MACHINES, Scripted, of, policy, spec

from tailrace import contracts as c
from tailrace.controller.spec import RolloutPool

EVERYONE = ("relay", "replica", "trainer", "data", "scorer", c.Step)
STANDBY = c.Reason(c.Why.STANDBY, "trainer 0")


def running(*, standby=True, replicas=2, **fields):
    recovery = policy("recovery", "role-based", standby=standby)
    provisioning = policy("provisioning", "static", count=replicas)
    machines = ("0", "1", "2")
    run = Scripted(spec(machines=machines, recovery=recovery, provisioning=provisioning, **fields), relays=3)
    run.machines = dict(ON_THREE_MACHINES)
    run.go(c.Tick(), leave=(c.Step,))
    return run


def loses(run, role="trainer", id_="0", leave=EVERYONE):
    """The first member of machine 0 whose death is seen."""
    return run.go(c.Down(role, id_, "its machine 0 is gone", c.Cause.MACHINE, "0"), leave=leave)


def restarts(given):
    return {(one.role, one.id): (one.place.machine, one.reason) for one in of(c.Restart, given)}


@pytest.mark.parametrize("first", [("trainer", "0"), ("relay", "0")], ids=["trainer first", "relay first"])
def test_the_trainer_takes_a_replicas_machine_and_the_replica_starts_elsewhere(first):
    run = running()
    given = restarts(loses(run, *first))
    taken = given["trainer", "0"][0]
    (lent,) = [member for member, (_, reason) in given.items() if reason == STANDBY]
    assert ON_THREE_MACHINES[lent] == taken
    assert given[lent][0] == {"1": "2", "2": "1"}[taken]
    assert given["relay", "0"][0] in ("1", "2")
    assert given.keys() == {("trainer", "0"), ("relay", "0"), lent}
    assert run.view.lent_machines == 1


def test_its_work_goes_on_elsewhere_and_the_run_ends_well():
    run = running()
    run.forget(c.Step)  # the trainer that had it is gone
    given = loses(run)
    run.machines |= {member: where for member, (where, _) in restarts(given).items()}
    run.catch_up()
    assert run.view.finished
    assert run.view.counts.trained == 6


def nobody_stands_in(run):
    given = restarts(loses(run))
    assert STANDBY not in [reason for _, reason in given.values()]
    assert given["trainer", "0"][0] in ("1", "2")
    assert run.view.lent_machines == 0


def test_without_the_option_nobody_stands_in():
    nobody_stands_in(running(standby=False))


def test_the_last_replica_does_not_stand_in():
    nobody_stands_in(running(replicas=1))


def test_replicas_of_another_kind_or_site_do_not_stand_in():
    nobody_stands_in(running(pools=(RolloutPool("other", 2, replica_batch=8, standby=False),)))


def test_the_last_holder_of_a_version_does_not_stand_in():
    run = running()
    replicas = run.controller.fleet.replicas
    replicas["r0"].version, replicas["r1"].version = -5, run.view.published
    given = restarts(loses(run))
    assert given["replica", "r1"][1] == STANDBY
