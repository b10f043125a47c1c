"""Warm standbys: a trainer that lost its machine takes a replica's, whose work goes on elsewhere."""

import pytest
from scripted import ON_THREE_MACHINES, Scripted, of, policy, spec
from wrong_policies import Wrong

from tailrace import contracts as c
from tailrace.controller.spec import RolloutPool

EVERYONE = ("relay", "replica", "trainer", "data", "scorer", c.Step)
STANDBY = c.Reason(c.Why.STANDBY, "trainer 0")


def running(*, standby=True, replicas=2, **fields):
    fields = {"recovery": policy("recovery", "role-based", standby=standby), **fields}
    provisioning = policy("provisioning", "static", count=replicas)
    machines = ("0", "1", "2")
    run = Scripted(spec(machines=machines, provisioning=provisioning, **fields), relays=3)
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


def test_who_died_on_a_machine_that_stays_is_told_of_no_standby():
    seen = []
    recovery = Wrong(policy("recovery", "role-based"), "on_down", lambda right, failure: seen.append(failure) or right)
    run = running(recovery=recovery)
    run.down("trainer", leave=EVERYONE)
    run.down("replica", "r0", leave=EVERYONE)
    assert [failure.standbys for failure in seen] == [0, 0]


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


# ---- machines of a cluster that was joined: the host chooses, and says who stands on which devices


def joined(*, trainer=2, replicas=("a", "b", "b", "c"), **fields):
    """A trainer on so many devices of machine t; replicas, a device each, on the machines that are named."""
    recovery = policy("recovery", "role-based", standby=True)
    provisioning = policy("provisioning", "static", count=len(replicas))
    run = Scripted(spec(recovery=recovery, provisioning=provisioning, **fields), relays=1)
    run.seats = {("trainer", "0"): tuple(c.ProcessSeat("t", (device,)) for device in range(trainer))}
    run.seats |= {
        ("replica", f"r{number}"): (c.ProcessSeat(machine, (replicas[:number].count(machine),)),)
        for number, machine in enumerate(replicas)
    }
    run.machines = {member: seats[0].machine for member, seats in run.seats.items()}
    run.go(c.Tick(), leave=(c.Step,))
    return run


def loses_t(run):
    return run.go(c.Down("trainer", "0", "its machine t is gone", c.Cause.MACHINE, "t"), leave=EVERYONE)


def test_as_many_replicas_of_one_machine_stand_in_as_the_trainer_lost_devices():
    run = joined()
    given = restarts(loses_t(run))
    assert given["trainer", "0"][0] == "b"
    lent = {member for member, (_, reason) in given.items() if reason == STANDBY}
    assert lent == {("replica", "r1"), ("replica", "r2")}
    places = {one.id: one.place for one in of(c.Restart, run.given) if one.role == "replica"}
    assert all("b" in places[id_].avoid and "t" in places[id_].avoid for id_ in ("r1", "r2"))
    assert run.view.lent_machines == 1


def test_a_trainer_that_loses_its_next_machine_while_it_starts_needs_as_many_devices_as_before():
    run = joined(replicas=("a", "a", "b", "b", "c"))
    first = restarts(loses_t(run))["trainer", "0"][0]
    run.forget(c.Restart)
    given = run.go(c.Down("trainer", "0", "its machine is gone", c.Cause.MACHINE, first), leave=EVERYONE)
    lent = {member for member, (_, reason) in restarts(given).items() if reason == STANDBY}
    assert lent == {("replica", "r2"), ("replica", "r3")}
    assert (first, restarts(given)["trainer", "0"][0]) == ("a", "b")


def test_a_share_of_a_device_counts_as_such():
    run = joined(trainer=1)
    run.controller.members.states["trainer", "0"].seats = (c.ProcessSeat("t", (0,), share=0.5),)
    lent = [member for member, (_, reason) in restarts(loses_t(run)).items() if reason == STANDBY]
    assert len(lent) == 1


@pytest.mark.parametrize("replicas", [("a", "b", "c"), ("b", "b")], ids=["no machine has two", "none would generate"])
def test_a_machine_with_too_few_devices_stands_in_for_nobody(replicas):
    run = joined(replicas=replicas)
    given = restarts(loses_t(run))
    assert STANDBY not in [reason for _, reason in given.values()]
    assert ("trainer", "0") in given  # wherever the host finds room
