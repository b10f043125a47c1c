"""What becomes of members that go down: counted for each since it last did its work, whatever time lies between."""

import pytest
from scripted import Scripted, of, policy, spec

from tailrace import contracts as c
from tailrace.controller.members import MemberState


def isolate(**limits):
    return policy("recovery", "isolate", **limits)


def restarts(commands):
    return [(command.role, command.id, command.reason) for command in of(c.Restart, commands)]


def failed(number, allowed):
    return c.Reason(c.Why.FAILED, numbers={"failures": number, "allowed": allowed})


def test_a_relay_may_die_a_hundred_times_if_it_works_in_between():
    run = Scripted(spec(steps=100, recovery=isolate(max_restarts=1)))
    run.go(c.Tick(), leave=(c.Step,))
    for step in range(100):
        run.now += 1.0
        assert restarts(run.down("relay", leave=(c.Step,))) == [("relay", "0", failed(1, 1))], step
        run.catch_up(leave=(c.Step,))
        assert run.view.published == step + 1
    assert run.view.finished
    assert run.view.restarts("relay") == 100


def test_one_that_dies_again_without_work_gives_up_and_says_why():
    run = Scripted(spec(recovery=isolate(max_restarts=2, window_s=60.0)))
    run.go(c.Tick(), leave=(c.Publish,))
    for number in (1, 2):
        assert restarts(run.down("relay", leave=(c.Publish,))) == [("relay", "0", failed(number, 2))]
    assert not restarts(run.down("relay", reason="no memory left"))
    assert run.view.failure == (
        "relay 0 is down and is not restarted: no memory left (failure 3 of it without work in between)"
    )


@pytest.mark.parametrize("apart_s", [1.0, 61.0, 33_165.0])
@pytest.mark.parametrize("starting", [False, True])
@pytest.mark.parametrize("role", ["trainer", "scorer", "data", "replica", "relay"])
def test_what_fails_again_before_anything_was_achieved_is_the_same_failure_whatever_time_lies_between(
    role, starting, apart_s
):
    static = policy("provisioning", "static", count=1)
    recovery = isolate(max_restarts=2, trainer_restarts=2, data_restarts=2, window_s=60.0)
    run = Scripted(spec(steps=9, provisioning=static, recovery=recovery))
    member, leave = "r0" if role == "replica" else "0", (c.Step, c.Route, c.Publish)
    run.go(c.Tick(), leave=leave)
    for number in (1, 2, 3):
        assert run.view.failure is None, number
        run.now += apart_s
        run.down(role, member, leave=(*leave, role) if starting else leave)
    assert run.view.failure is not None
    assert f"{role} {member} is down and is not restarted" in run.view.failure
    assert "(failure 3 of it without work in between)" in run.view.failure


@pytest.mark.parametrize("apart_s", [1.0, 33_165.0])
@pytest.mark.parametrize("every", [1, 2, 3])
@pytest.mark.parametrize(
    "recovery",
    [("isolate", {"trainer_restarts": 2}), ("role-based", {}), ("restart-task", {})],
    ids=lambda one: one[0],
)
def test_a_step_that_is_made_again_and_lost_again_achieves_nothing(recovery, every, apart_s):
    """A trainer that dies whenever its third step is done, before that is durable: it falls back and makes it again."""
    name, limits = recovery
    run = Scripted(spec(steps=9, checkpoint_every=every, recovery=policy("recovery", name, **limits)))
    leave = (c.Step, c.Checkpoint)
    run.go(c.Tick(), leave=leave)
    made = 0
    for _ in range(100):
        if run.view.failure is not None:
            break
        if run.controller.trainer.step < 3:
            if run.controller.trainer.step < 2:
                run.catch_up(c.Checkpoint, leave=leave)
            run.catch_up(c.Step, leave=leave)
            made += run.controller.trainer.step == 3
            continue
        run.now += apart_s
        run.forget(*leave)
        run.down("trainer", reason="no space left for a checkpoint", leave=leave)
    assert run.view.failure is not None, f"it made its third step {made} times and goes on"
    assert "no space left for a checkpoint" in run.view.failure


@pytest.mark.parametrize("recovery", ["isolate", "role-based", "restart-task"])
def test_a_step_that_takes_longer_than_detection_allows_ends_the_run_and_says_which_limit(recovery):
    run = Scripted(spec(recovery=policy("recovery", recovery)))
    run.go(c.Tick(), leave=(c.Step,))
    for _ in range(10_000):
        if run.view.failure is not None:
            break
        run.forget(c.Step)
        run.later(5.0, leave=(c.Step,))
    assert run.view.failure is not None, f"it goes on after {run.now:.0f} s"
    assert "trainer 0 is down and is not restarted: stood still for " in run.view.failure
    said = "by pipeline.detection a trainer may stand still for 300 s: raise that if a healthy one needs longer"
    assert run.view.failure.endswith(said)


def test_a_trainer_that_fails_at_another_step_each_time_may_do_so_for_ever():
    run = Scripted(spec(steps=60, recovery=isolate(trainer_restarts=1)))
    run.go(c.Tick(), leave=(c.Step,))
    while not run.view.finished:
        run.now += 1.0
        run.forget(c.Step)
        assert restarts(run.down("trainer", leave=(c.Step,)))[0][2].numbers["failures"] == 1
        run.catch_up(c.Step, leave=(c.Step,))
        assert run.view.failure is None


@pytest.mark.parametrize(
    ("role", "work"),
    [
        ("trainer", None),  # a step
        ("scorer", c.Scored("0.0", 1.0)),
        ("data", c.Scored("0.0", 1.0)),
        ("replica", c.Finished("r0", "7.7", 3)),
        ("relay", c.Published(0)),
    ],
)
def test_work_of_a_member_forgives_its_failures(role, work):
    run = Scripted(spec(steps=50, recovery=isolate(max_restarts=1, trainer_restarts=1, data_restarts=1)))
    member = "r0" if role == "replica" else "0"
    run.go(c.Tick(), leave=(c.Step,))
    numbers = []
    for _ in range(4):
        run.forget(c.Step)
        numbers.append(restarts(run.down(role, member, leave=(c.Step,)))[0][2].numbers["failures"])
        if work is None:
            run.catch_up(c.Step, leave=(c.Step,))
        else:
            run.go(work, leave=(c.Step,))
    assert numbers == [1] * 4
    assert run.view.failure is None


def test_failures_of_one_are_not_those_of_another():
    run = Scripted(spec(provisioning=policy("provisioning", "static", count=4), recovery=isolate(max_restarts=1)))
    run.go(c.Tick(), leave=(c.Route,))
    for name in ("r0", "r1", "r2", "r3"):
        assert restarts(run.down("replica", name, leave=(c.Route,))) == [("replica", name, failed(1, 1))]
    assert run.view.failure is None


def test_one_that_fails_too_often_is_evicted_and_others_do_its_work():
    run = Scripted(spec(recovery=isolate(max_restarts=1)))
    run.go(c.Tick(), leave=(c.Route,))
    run.down("replica", "r0", leave=(c.Route,))
    before = len(run.given)
    assert not restarts(run.down("replica", "r0", leave=(c.Route,)))
    assert [state.id for state in run.controller.members.of("replica")] == ["r1"]
    run.forget(c.Route)
    routed = {name for name, state in run.controller.ledger.trajectories.items() if state.replica == "r1"}
    idle = c.Snapshot("r1", 0.0, 0, 0, 4, 0, 999)
    run.go(*(c.Finished("r1", name, 3) for name in routed), idle)
    assert run.view.finished
    assert {command.replica for command in of(c.Route, run.given[before:])} == {"r1"}


def test_what_a_policy_sees_of_a_failure():
    seen = []

    class Watching(c.RecoveryPolicy):
        window_s = 100.0

        def on_down(self, failure):
            seen.append(failure)
            return c.RecoveryAction.RESTART

        def suspects(self, view):
            return ()

    run = Scripted(spec(recovery=Watching()))
    run.machines = {("replica", "r0"): "m0", ("replica", "r1"): "m0", ("trainer", "0"): "m0"}
    run.go(c.Tick(), leave=(c.Step, c.Route))
    run.go(c.Activity("trainer", "0", "publishing"), leave=(c.Step,))
    run.down("replica", "r0", c.Cause.BROKE, "raised", leave=("r0", "replica"))
    run.down("trainer", leave=(c.Step,))
    first, second = seen
    assert (first.role, first.member, first.cause, first.reason) == ("replica", "r0", c.Cause.BROKE, "raised")
    assert (first.machine, first.machine_failures, first.role_failures, first.others) == ("m0", 1, 1, 1)
    assert first.first_iteration
    assert not first.starting
    assert (second.phase, second.machine_failures, second.role_failures, second.others) == ("publishing", 2, 1, 0)
    run.down("replica", "r0")
    assert seen[2].starting
    assert seen[2].failures == 2
    assert seen[2].machine == ""  # nobody knows where it would have come up


def test_a_member_that_stands_still_is_replaced_and_its_work_goes_on():
    run = Scripted(spec(detection=policy("detection", "role-aware", replica_s=5.0, slow_factor=3.0)))
    given = run.go(c.Tick(), leave=(c.Route,))
    held = {ref.trajectory for route in of(c.Route, given) if route.replica == "r0" for ref in route.trajectories}
    assert not run.go(c.Activity("replica", "r0", "generating", 7, 4.9, 0.1), leave=(c.Route,))
    assert not run.go(c.Activity("replica", "r0", "generating", 7, 8.0, 3.0), leave=(c.Route,))  # it is just slow
    run.forget(c.Route)
    given = run.go(c.Activity("replica", "r0", "generating", 7, 9.1, 3.0), leave=(c.Route,))
    restart = of(c.Restart, given)[0]
    assert (restart.id, restart.reason) == (
        "r0",
        c.Reason(c.Why.STILL, numbers={"still_s": 9.1, "limit_s": 9.0, "failures": 1, "allowed": 3}),
    )
    assert {ref.trajectory for route in of(c.Route, given) for ref in route.trajectories} >= held
    assert run.view.failure is None


def test_nothing_is_heard_of_what_is_down_already():
    run = Scripted()
    run.go(c.Tick(), leave=(c.Step,))
    run.down("replica", "r0", leave=("replica",))
    members = run.controller.members.get("replica", "r0")
    assert isinstance(members, MemberState)
    run.go(c.Down("replica", "r9", "who?", c.Cause.DIED))
    assert run.view.failure is None


@pytest.mark.parametrize("role", ["trainer", "data", "scorer", "relay", "replica"])
def test_a_run_that_gave_up_can_be_resumed_and_counts_anew(role):
    once = isolate(max_restarts=0, trainer_restarts=0, data_restarts=0)
    run = Scripted(spec(recovery=once, provisioning=policy("provisioning", "static", count=1)))
    member = "r0" if role == "replica" else "0"
    run.go(c.Tick(), leave=(c.Step,))
    for _ in range(3):
        run.down(role, member)
        assert f"{role} {member} is down and is not restarted: killed (failure 1 of it " in run.view.failure
        run.forget(c.Step)
        given = run.go(c.Resumed((0,)), leave=(c.Step,))
        assert run.view.failure is None
        assert (role, member) in [(command.role, command.id) for command in of(c.Restart, given)]
        assert all(command.reason.why is c.Why.LOST_IN_CRASH for command in of(c.Restart, given))
    run.catch_up()
    assert run.view.finished
    assert run.view.counts.trained == 6


def test_a_driver_that_dies_again_while_it_resumes_goes_on():
    run = Scripted()
    run.go(c.Tick(), leave=(c.Step,))
    for leave in (("data",), ("trainer",), ("relay",), ("replica",), ("scorer",), (c.Publish,), (c.Pull,), (c.Step,)):
        run.left = []
        run.go(c.Resumed((0,)), leave=leave)
        if run.view.finished:
            break
    run.left = []
    run.go(c.Resumed((0,)))
    assert run.view.finished
    assert run.view.counts.trained == 6


def test_nothing_is_decided_before_the_store_has_said_what_it_holds():
    run = Scripted()
    run.go(c.Tick(), leave=(c.Step,))
    given = run.go(c.Resumed((0,)), leave=("data",))
    assert not of((c.Route, c.Step, c.Pull, c.Score), given)
    assert of(c.Step, run.catch_up("data", leave=(c.Step,)))


def test_a_data_role_that_dies_while_it_resumes_is_asked_for_the_same_version():
    run = Scripted()
    run.go(c.Tick(), leave=(c.Step,))
    run.forget(c.Step)
    given = run.go(c.Resumed((0,)), leave=("data",))
    asked = [command.version for command in of(c.Restart, given) if command.role == "data"]
    again = [command.version for command in of(c.Restart, run.down("data", leave=("data",))) if command.role == "data"]
    assert asked == again == [0]
    run.catch_up(leave=(c.Step,))
    assert [command.version for command in of(c.Restart, run.down("data", leave=(c.Step,)))] == [None]


def test_detection_is_asked_no_more_of_one_that_was_given_up():
    class Suspects(c.DetectionPolicy):
        look_s = 100.0
        asked = 0

        def suspects(self, signs):
            self.asked += 1
            return [
                c.Suspected(sign.role, sign.id, c.Reason(c.Why.STILL, numbers={"still_s": 9.0}))
                for sign in signs
                if sign.still_s
            ]

        def within_s(self, role):
            return float("inf")

    detection = Suspects()
    run = Scripted(spec(recovery=isolate(max_restarts=0), detection=detection))
    run.go(c.Tick(), leave=(c.Route,))
    run.go(c.Activity("replica", "r0", "generating", still_s=9.0), leave=(c.Route,))
    assert [state.id for state in run.controller.members.of("replica")] == ["r1"]
    asked = detection.asked
    for _ in range(5):
        run.later(1.0, leave=(c.Route,))
    assert detection.asked == asked


@pytest.mark.parametrize("silent", [True, False])
def test_detection_looks_at_each_tick_while_a_member_is_silent(silent):
    class Looks(c.DetectionPolicy):
        look_s = 100.0

        def __init__(self):
            self.seen = []

        def suspects(self, signs):
            self.seen.append({sign.id: sign.silent_s for sign in signs if sign.role == "replica"})
            return ()

        def within_s(self, role):
            return float("inf")

    detection = Looks()
    run = Scripted(spec(detection=detection))
    run.go(c.Tick(), leave=(c.Route,))
    if silent:
        run.go(c.Silent("replica", "r0", 5.0), leave=(c.Route,))
    detection.seen.clear()
    for _ in range(2):
        run.later(1.0, leave=(c.Route,))
    assert detection.seen == ([{"r0": 6.0, "r1": 0.0}, {"r0": 7.0, "r1": 0.0}] if silent else [])


@pytest.mark.parametrize("role", ["replica", "trainer"])
def test_that_no_controller_was_there_says_nothing_of_a_member(role):
    """One was silent as its controller died, or the trainer far in a micro-batch; the next controller comes after 110 s."""
    run = Scripted(spec(detection=policy("detection", "role-aware")))
    leave = (c.Route, c.Step) if role == "replica" else (c.Step,)
    run.go(c.Tick(), leave=leave)
    if role == "replica":
        run.go(c.Silent(role, "r0", 12.0), leave=leave)
    else:
        run.later(6.0, leave=leave)  # it is seen to train
        run.later(250.0, leave=leave)
    run.now += 110.0
    given = run.go(c.Attached(2, 110.0), leave=leave)
    for _ in range(20):
        given += run.later(1.0, leave=leave)
    assert restarts(given) == []
    given = run.go(c.Silent(role, "r0" if role == "replica" else "0", 60.0), leave=leave) + run.later(1.0, leave=leave)
    assert [(role, why.why) for role, _, why in restarts(given)] == [(role, c.Why.SILENT)]


def test_detection_hears_what_a_replica_says_it_does_only_while_it_stands_still():
    seen = []

    class Looks(c.DetectionPolicy):
        look_s = 1.0

        def suspects(self, signs):
            seen.append({sign.id: (sign.phase, sign.work) for sign in signs if sign.role == "replica"})
            return ()

        def within_s(self, role):
            return float("inf")

    run = Scripted(spec(detection=Looks()))
    run.go(c.Tick(), leave=(c.Route,))
    run.left = [route for route in run.left if route.replica == "r0"]
    run.down("replica", "r1", leave=(c.Pull,))
    run.go(c.Activity("replica", "r0", "prefilling"), leave=(c.Route,))
    run.later(1.0, leave=(c.Route, c.Pull))
    assert seen[-1] == {"r0": ("generating", 4), "r1": ("pulling", 0)}
    run.go(c.Activity("replica", "r0", "prefilling", still_s=9.0), leave=(c.Route,))
    assert seen[-1] == {"r0": ("prefilling", 4), "r1": ("pulling", 0)}


def test_a_suspicion_without_a_limit_names_none():
    class Suspects(c.DetectionPolicy):
        look_s = 1.0

        def suspects(self, signs):
            reason = c.Reason(c.Why.STILL, numbers={"still_s": 9.0})
            return [c.Suspected(sign.role, sign.id, reason) for sign in signs if sign.still_s]

        def within_s(self, role):
            return float("inf")

    one = policy("provisioning", "static", count=1)
    run = Scripted(spec(recovery=isolate(max_restarts=0), detection=Suspects(), provisioning=one))
    run.go(c.Tick(), leave=(c.Route,))
    run.go(c.Activity("replica", "r0", "generating", still_s=9.0), leave=(c.Route,))
    assert run.view.failure == (
        "replica r0 is down and is not restarted: stood still for 9 s with work in flight (failure 1 of it without work in "
        "between)"
    )
