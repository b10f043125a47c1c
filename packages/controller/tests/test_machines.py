"""Machines: one that is given up takes its members along, and nobody stands there again."""

import pytest
from scripted import Scripted, of, policy, spec

from tailrace import contracts as c

PLACES = {
    ("relay", "0"): "m0",
    ("replica", "r0"): "m0",
    ("replica", "r1"): "m1",
    ("trainer", "0"): "m1",
    ("data", "0"): "m1",
    ("scorer", "0"): "m0",
}


def evicting(after=2, **options):
    run = Scripted(spec(recovery=policy("recovery", "isolate", machine_failures=after, **options)), relays=2)
    run.machines = {**PLACES, ("relay", "1"): "m1"}
    run.go(c.Tick(), leave=(c.Step,))
    return run


def moved(commands):
    return {(command.role, command.id): (command.place.avoid, command.reason) for command in of(c.Restart, commands)}


def test_a_machine_that_is_given_up_takes_its_members_along():
    run = evicting()
    run.down("replica", "r0", leave=(c.Step,))
    assert all(machine.healthy for machine in run.controller.members.machines.values())
    given = run.down("relay", "0", leave=("relay", "replica", "scorer", c.Step))
    why = c.Reason(c.Why.MACHINE, "m0")
    assert moved(given) == {
        ("replica", "r0"): (("m0",), why),
        ("scorer", "0"): (("m0",), why),
        ("relay", "0"): (("m0",), c.Reason(c.Why.FAILED, numbers={"failures": 1, "allowed": 3})),
    }
    machines = run.controller.members.machines
    assert {name: machine.healthy for name, machine in machines.items()} == {"m0": False, "m1": True}
    run.machines |= {member: "m2" for member, machine in PLACES.items() if machine == "m0"}
    run.catch_up()
    assert run.view.finished
    assert run.view.counts.trained == 6


def test_everything_that_starts_later_avoids_it():
    run = evicting(after=1)
    run.down("scorer", leave=(c.Step,))
    given = of(c.Restart, run.down("replica", "r1", leave=(c.Step,)))
    assert {frozenset(command.place.avoid) for command in given} == {frozenset({"m0", "m1"})}
    assert all("m0" in command.place.avoid for command in of(c.Restart, run.go(c.Resumed((0,)), leave=(c.Step,))))


def test_one_that_comes_up_on_a_machine_that_was_given_up_meanwhile_moves_on():
    run = evicting()
    run.down("replica", "r0", leave=("replica", c.Step))
    run.down("relay", "0", leave=("relay", "scorer", c.Step))
    given = run.catch_up("replica", leave=("replica", c.Step))
    assert moved(given) == {("replica", "r0"): (("m0",), c.Reason(c.Why.MACHINE, "m0"))}
    assert not of(c.Pull, given)
    given = run.catch_up("replica", leave=(c.Pull, c.Step))  # there is no other: so be it
    assert moved(given) == {}
    assert [command.replica for command in of(c.Pull, given)] == ["r0"]


@pytest.mark.parametrize("role", ["trainer", "data"])
def test_the_trainer_and_the_store_go_along_too(role):
    run = evicting(after=1)
    run.machines = dict.fromkeys(run.machines, "m1")
    given = run.down("replica", "r1", leave=(c.Step,))
    assert (role, "0") in moved(given)
    assert run.view.failure is None


def test_a_member_is_replaced_elsewhere_and_the_machine_stays():
    class Elsewhere(c.RecoveryPolicy):
        window_s = 60.0

        def on_down(self, failure):
            return c.RecoveryAction.REPLACE

    run = Scripted(spec(recovery=Elsewhere()))
    run.machines = PLACES
    run.go(c.Tick(), leave=(c.Step,))
    assert moved(run.down("replica", "r0", leave=(c.Step,)))["replica", "r0"][0] == ("m0",)
    assert moved(run.down("replica", "r1", leave=(c.Step,)))["replica", "r1"][0] == ("m1",)


def test_policies_see_machines_and_who_stands_there():
    seen = []

    class Watching(c.ProvisioningPolicy):
        count = 2

        def plan(self, view):
            seen.append(view)
            return [] if view.of("replica") else [c.StartReplica()] * 2

    run = Scripted(spec(provisioning=Watching()), relays=2)
    run.machines = {**PLACES, ("relay", "1"): "m1"}
    assert run.go(c.Tick(), leave=(c.Step,))
    first, last = seen[0], seen[-1]
    assert [member.health for member in first.members] == [c.Health.STARTING] * 5
    assert set(last.machines) == {"m0", "m1"}
    assert {(member.role, member.id): member.machine for member in last.members} == run.machines
    assert {member.health for member in last.members} == {c.Health.UP}
    assert {member.in_flight for view in seen for member in view.members if member.role != "replica"} == {0}


class Between(c.ProvisioningPolicy):
    """Replicas between steps: one more after the first step, one less after the second."""

    def plan(self, view):
        replicas = [member for member in view.of("replica") if member.health is not c.Health.STOPPING]
        wanted = {0: 1, 1: 2}.get(view.progress.version, 1)
        if len(replicas) < wanted:
            return [c.StartReplica()] * (wanted - len(replicas))
        return [c.StopReplica(member.id) for member in replicas[: len(replicas) - wanted]]


def test_replicas_come_and_go_while_the_run_goes_on():
    run = Scripted(spec(steps=4, provisioning=Between(), replica_batch=8))
    run.go(c.Tick(), leave=(c.Step, c.Route))
    assert [state.id for state in run.controller.members.of("replica")] == ["r0"]
    while not run.view.step:
        run.catch_up(c.Route, c.Step, leave=(c.Step, c.Route))
    assert [state.id for state in run.controller.members.of("replica")] == ["r0", "r1"]
    while run.view.step < 2:
        run.catch_up(leave=(c.Step, c.Route))
    run.forget("nobody")
    run.catch_up()
    assert run.view.finished
    stops = of(c.Stop, run.given)
    assert [(stop.role, stop.id, stop.reason.why) for stop in stops] == [("replica", "r0", c.Why.PLANNED)]
    assert [state.id for state in run.controller.members.of("replica")] == ["r1"]
    assert run.view.counts.trained == 8


def test_one_that_is_to_stop_is_emptied_first_and_its_tokens_go_on():
    class Less(c.ProvisioningPolicy):
        def plan(self, view):
            working = [member for member in view.of("replica") if member.health is not c.Health.STOPPING]
            if not view.of("replica"):
                return [c.StartReplica()] * 2
            return [c.StopReplica("r0")] if view.progress.version and len(working) == 2 else []

    run = Scripted(spec(provisioning=Less(), batch_groups=1, steps=9))
    run.go(c.Tick(), leave=(c.Route,))
    r1 = next(route for route in run.left if route.replica == "r1")
    run.left.remove(r1)
    held = {ref.trajectory for ref in run.left[0].trajectories}
    given = run.go(*run.answers(r1), leave=(c.Route, c.Interrupt))
    interrupts = of(c.Interrupt, given)
    assert [(i.replica, set(i.trajectories), i.reason.why) for i in interrupts] == [("r0", held, c.Why.STOPPING)]
    assert not of(c.Stop, given)
    run.forget(c.Route)
    given = run.catch_up(c.Interrupt, leave=(c.Route,))
    assert [stop.id for stop in of(c.Stop, given)] == ["r0"]
    assert not [command for command in of((c.Route, c.Pull), given) if command.replica == "r0"]
    assert {ref.kept for route in of(c.Route, given) for ref in route.trajectories if ref.trajectory in held} <= {5}


# ---- checks of machines ---------------------------------------------------------------------------------------------


def test_a_member_that_failed_starts_only_on_a_machine_that_passes_its_checks():
    run = Scripted(spec(recovery=policy("recovery", "isolate"), machine_checks=True))
    assert not any(start.place.check for start in of(c.Start, run.go(c.Tick(), leave=(c.Step,))))
    given = of(c.Restart, run.down("replica", "r0", leave=(c.Step,)))
    assert [restart.place.check for restart in given] == [True]
    resumed = of(c.Restart, run.go(c.Resumed((0,)), leave=(c.Step,)))
    assert resumed
    assert not any(restart.place.check for restart in resumed)  # no machine failed: the driver did


def test_without_checks_nothing_is_checked():
    run = Scripted(spec(recovery=policy("recovery", "isolate")))
    run.go(c.Tick(), leave=(c.Step,))
    given = of(c.Restart, run.down("replica", "r0", leave=(c.Step,)))
    assert [restart.place.check for restart in given] == [False]


def test_a_machine_that_does_not_pass_is_given_up_with_all_members_there():
    run = Scripted(spec(recovery=policy("recovery", "isolate"), machine_checks=True), relays=2)
    run.machines = {**PLACES, ("relay", "1"): "m1"}
    run.go(c.Tick(), leave=(c.Step,))
    run.down("replica", "r0", leave=("replica", c.Step))
    unfit = c.Down("replica", "r0", "its disk", c.Cause.MACHINE, machine="m0")
    given = run.go(unfit, leave=("relay", "replica", "scorer", c.Step))
    assert set(moved(given)) == {("replica", "r0"), ("relay", "0"), ("scorer", "0")}
    assert {avoid for avoid, _ in moved(given).values()} == {("m0",)}
    assert not run.controller.members.machines["m0"].healthy


# ---- a fault that persists ------------------------------------------------------------------------------------------


class Obeying(Scripted):
    """Members come up on the machine that their place names."""

    def answers(self, command):
        if isinstance(command, c.Start | c.Restart) and command.place.machine:
            self.machines[command.role, command.id] = command.place.machine
        return super().answers(command)


def persisting(run, room):
    """r0 goes down again and again. Returns the machine and the count of each restart, and what came of the last time."""
    seen = []
    for _ in range(9):
        event = c.Down("replica", "r0", "its device is gone", c.Cause.BROKE, room=room)
        given = run.go(event, leave=(c.Step, c.Route))
        mine = [one for one in of(c.Restart, given) if (one.role, one.id) == ("replica", "r0")]
        if not mine:
            return seen, given
        seen += [(one.place.machine, one.reason.numbers["failures"]) for one in mine]
        assert all(one.place.machine not in one.place.avoid for one in mine)
    raise AssertionError(f"no end: {seen}")


@pytest.mark.parametrize("named", [True, False])
def test_a_fault_that_persists_has_its_machine_evicted_and_a_replacement_elsewhere(named):
    names = ("m0", "m1", "m2") if named else ()
    run = Obeying(spec(machines=names, recovery=policy("recovery", "isolate", max_restarts=2)), relays=3)
    run.machines = {("replica", "r0"): "m0", ("relay", "0"): "m0", ("trainer", "0"): "m1"}
    run.go(c.Tick(), leave=(c.Step, c.Route))
    first = run.controller.members.get("replica", "r0").machine
    others = {(one.role, one.id) for one in run.controller.members.states.values() if one.machine == first}
    assert ("replica", "r0") in others
    assert len(others) > 1
    seen, given = persisting(run, None if named else ("m2", "m1"))
    second = seen[2][0]
    assert second not in ("", first)
    assert seen == [(first, 1), (first, 2), (second, 3), (second, 1), (second, 2)], (
        "in place, elsewhere, and counted anew"
    )
    assert not run.controller.members.machines[first].healthy
    left = {(one.role, one.id) for one in of(c.Restart, run.given) if first in one.place.avoid}
    assert left >= others, "they left it, too"
    (stop,) = of(c.Stop, given)
    assert (stop.id, stop.reason.numbers["left"]) == ("r0", 1), "given up on a second machine too, and the log has it"
    assert run.view.given_up == [{"role": "replica", "id": "r0", "machine": second, "reason": "its device is gone"}]
    assert run.view.failure is None


def test_a_driver_that_goes_on_has_new_machines_of_its_own():
    """One of two had died: on the other alone there is no second place for checkpoints, and the run would fail again."""
    run = Obeying(spec(machines=("0", "1")), relays=2)
    run.go(c.Tick(), leave=(c.Step, c.Route))
    trainer = run.machines["trainer", "0"]
    lost = [(role, id_) for (role, id_), machine in run.machines.items() if machine == trainer]
    for role, id_ in lost:
        run.go(c.Down(role, id_, "gone", c.Cause.MACHINE, trainer), leave=(c.Step, c.Route))
    assert len({run.machines["relay", id_] for id_ in "01"}) == 1
    run.forget(c.Step)
    run.forget(c.Route)
    run.go(c.Resumed((0,)), leave=(c.Step, c.Route))
    assert {run.machines["relay", id_] for id_ in "01"} == {"0", "1"}
    assert run.controller.members.given_up == ()


def test_work_on_the_new_machine_forgives_and_a_later_fault_may_move_it_again():
    run = Obeying(spec(machines=("m0", "m1", "m2", "m3"), recovery=policy("recovery", "isolate", max_restarts=0)))
    run.go(c.Tick(), leave=(c.Step, c.Route))
    stood = [run.machines["replica", "r0"]]
    for _ in range(2):
        run.down("replica", "r0", leave=(c.Step, c.Route))
        stood.append(run.machines["replica", "r0"])
        run.go(c.Finished("r0", "0.7", 3), leave=(c.Step, c.Route))
    assert len({*stood}) == 3
    assert run.view.failure is None


def test_without_room_elsewhere_nobody_moves_and_the_machine_stays():
    run = Scripted(spec(recovery=policy("recovery", "isolate", max_restarts=1)), relays=2)
    run.machines = {**PLACES, ("relay", "1"): "m1"}
    run.go(c.Tick(), leave=(c.Step, c.Route))
    seen, given = persisting(run, ())
    assert seen == [("m0", 1)]
    assert of(c.Stop, given)
    assert run.controller.members.machines["m0"].healthy


def test_the_machine_of_the_store_is_not_given_up_for_a_replica():
    run = Obeying(spec(recovery=policy("recovery", "isolate", max_restarts=0)), relays=2)
    run.machines = {**PLACES, ("relay", "1"): "m1"}  # the store stands on m1
    run.go(c.Tick(), leave=(c.Step, c.Route))
    given = run.go(c.Down("replica", "r1", "gone", c.Cause.DIED, room=("m2",)), leave=(c.Step, c.Route))
    (one,) = of(c.Restart, given)
    assert (one.id, one.place.machine, one.place.avoid) == ("r1", "m2", ("m1",))
    assert run.controller.members.machines["m1"].healthy


def test_members_of_a_machine_that_are_missed_together_do_not_count_against_their_next_one():
    """A controller that attaches hears of all that died meanwhile at once, with no machine named."""
    run = evicting(after=1)
    gone = [c.Down(role, id_, "it died", c.Cause.DIED) for role, id_ in (("replica", "r0"), ("relay", "0"))]
    given = run.handle(*gone)
    assert {member: avoid for member, (avoid, _) in moved(given).items()} == {
        ("replica", "r0"): ("m0",),
        ("scorer", "0"): ("m0",),
        ("relay", "0"): ("m0",),
    }
    assert run.controller.members.restarts == {"replica": 1, "relay": 1, "scorer": 1}
    assert run.controller.members.machines["m1"].healthy


def test_each_member_of_a_machine_starts_anew_once_though_the_trainer_stood_there_too():
    """Recovery is asked about the trainer of such a machine, and then gives the machine up itself."""
    run = Scripted(spec(recovery=policy("recovery", "isolate")), relays=2)
    there = [("relay", "0"), ("trainer", "0"), ("replica", "r0"), ("replica", "r1")]
    run.machines = {**dict.fromkeys(there, "m0"), ("relay", "1"): "m1", ("data", "0"): "m1", ("scorer", "0"): "m1"}
    run.go(c.Tick(), leave=(c.Step,))
    given = run.handle(c.Down("replica", "r0", "its machine is gone", c.Cause.MACHINE, "m0"))
    assert sorted((one.role, one.id) for one in of(c.Restart, given)) == sorted(there)
    assert run.controller.members.restarts == {"relay": 1, "trainer": 1, "replica": 2}
