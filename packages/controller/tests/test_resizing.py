"""A plan that changes how many devices replicas span: who stops, is resized and starts, in which order, and what is kept."""

from dataclasses import dataclass

import pytest
from scripted import Scripted, of, spec
from scripted import policy as load
from test_changes import resume

from tailrace import contracts as c
from tailrace.repack import AdaptiveTP, to_size


@dataclass
class Sized(c.ProvisioningPolicy):
    """A replica takes as many devices as `tp` says now."""

    tp: int = 1

    def plan(self, view):
        staying = [member for member in view.of("replica") if member.health is not c.Health.STOPPING]
        if not staying:
            return [c.StartReplica(tp=self.tp)] * (2 // self.tp)
        return [] if all(m.tp == self.tp for m in staying) else to_size(staying, self.tp, 2, c.Reason(c.Why.PLANNED))


def changed(commands):
    """What starts, stops and is resized, in order."""
    resized = {id(one): one.replica for one in of(c.Resize, commands)}
    replicas = {id(one): one.id for one in of((c.Start, c.Stop, c.Restart), commands) if one.role == "replica"}
    names = resized | replicas
    return [f"{type(one).__name__} {names[id(one)]}" for one in commands if id(one) in names]


@pytest.fixture
def policy():
    return Sized()


@pytest.fixture
def run(policy):
    run = Scripted(spec(provisioning=policy, steps=12))
    run.go(c.Tick(), leave=(c.Route,))
    assert len(of(c.Route, run.left)) == 2
    return run


def tick_over(run, policy, tp, **how):
    """The policy wants another size, and is asked: a relay has come up again."""
    policy.tp = tp
    return run.go(c.Down("relay", "0", "killed", c.Cause.DIED), **how)


def test_two_become_one_of_two_devices_and_back(run, policy):
    given = tick_over(run, policy, 2, leave=(c.Route, c.Interrupt, c.Stop, c.Resize))
    assert {one.replica for one in of(c.Interrupt, given)} == {"r0", "r1"}
    assert {one.reason.why for one in of(c.Interrupt, given)} == {c.Why.STOPPING, c.Why.RESIZING}
    assert not changed(given)  # both still hold trajectories
    emptied = run.catch_up(c.Interrupt, leave=(c.Route, c.Stop, c.Resize))
    assert changed(emptied) == ["Stop r1"]  # r0 waits for its devices
    run.forget(c.Route)
    freed = run.catch_up(c.Stop, leave=(c.Route, c.Resize))
    assert changed(freed) == ["Resize r0"]
    assert of(c.Resize, freed)[0].tp == 2
    assert not of(c.Route, freed)
    up = run.go(c.Up("replica", "r0"), leave=(c.Route, c.Pull))
    assert [one.replica for one in of(c.Pull, up)] == ["r0"]  # it serves nothing before
    assert not of(c.Route, up)
    run.forget(c.Resize)
    routed = run.catch_up(c.Pull, leave=(c.Route,))
    assert sum(ref.kept for one in of(c.Route, routed) for ref in one.trajectories) > 0  # with their tokens

    crashed = run.down("replica", "r0", leave=(c.Route,))
    assert [(one.id, one.tp) for one in of(c.Restart, crashed)] == [("r0", 2)]
    run.forget(c.Route)

    back = tick_over(run, policy, 1, leave=(c.Route, c.Interrupt, c.Resize, "replica"))
    run.catch_up(c.Interrupt, leave=(c.Route, c.Resize, "replica"))
    both = [one for one in run.given if one.seq > back[0].seq]
    assert changed(both) == ["Resize r0", "Start r2"]
    assert of(c.Start, both)[0].tp is None  # as at the start


def test_one_that_dies_while_it_is_emptied_starts_at_its_new_size(run, policy):
    tick_over(run, policy, 2, leave=(c.Route, c.Interrupt, c.Stop, c.Resize))
    run.forget(c.Interrupt)
    down = run.down("replica", "r0", leave=(c.Route, c.Stop))
    assert [(one.id, one.tp) for one in of(c.Restart, down)] == [("r0", 2)]
    assert not of(c.Resize, run.given)


@pytest.mark.parametrize("sign", ["still", "silent"])
def test_one_that_hangs_while_it_is_emptied_for_its_new_size_starts_with_it(run, policy, sign):
    tick_over(run, policy, 2, leave=(c.Route, c.Interrupt, c.Stop, c.Resize))
    run.forget(c.Interrupt)
    given = hangs(run, sign)
    assert [(one.id, one.tp) for one in of(c.Restart, given)] == [("r0", 2)]
    assert not of(c.Resize, run.given)


@pytest.mark.parametrize("sign", ["still", "silent"])
def test_one_that_hangs_while_it_is_emptied_to_stop_is_told_to_stop_and_its_work_goes_elsewhere(run, policy, sign):
    plan = [c.StopReplica("r0"), c.StartReplica()]
    policy.plan = lambda view: [plan.pop(0) for _ in range(len(plan))]
    run.go(c.Down("relay", "0", "killed", c.Cause.DIED), leave=(c.Route, c.Interrupt, c.Stop))
    held = list(run.controller.fleet.replicas["r0"].assigned)
    assert held
    run.forget(c.Interrupt)
    given = hangs(run, sign)
    assert changed(given) == ["Stop r0"]
    assert all(run.controller.ledger.trajectories[name].replica != "r0" for name in held)
    run.go(c.Finished("r0", held[0], 3), leave=(c.Route, c.Stop))  # it woke up
    assert changed(run.catch_up(c.Stop, leave=(c.Route,))) == ["Start r2"]
    run.catch_up()
    assert run.view.finished, run.view.failure


def hangs(run, sign):
    """A replica with work stands still, or does not answer, until something is done about it. Returns the commands."""
    leave = (c.Route, c.Interrupt, c.Stop, c.Resize)
    for minutes in range(1, 30):
        run.now += 60.0
        still = c.Activity("replica", "r0", "generating", still_s=60.0 * minutes)
        event = still if sign == "still" else c.Silent("replica", "r0", 60.0 * minutes)
        given = [one for one in run.go(event, c.Tick(), leave=leave) if isinstance(one, c.Restart | c.Stop)]
        if given:
            return given
    return []


def test_one_that_waits_for_its_devices_leaves_without_a_process():
    policy = Sized(2)
    run = Scripted(spec(provisioning=policy, steps=12))
    run.go(c.Tick(), leave=(c.Route,))
    given = tick_over(run, policy, 1, leave=(c.Route, c.Interrupt, c.Resize, "replica"))
    assert not changed(given)  # r0 holds trajectories: it has the devices on which r1 is to start
    assert run.controller.members.get("replica", "r1") is not None
    policy.tp = 2
    given += run.go(c.Down("relay", "0", "killed", c.Cause.DIED), leave=(c.Route, c.Interrupt, c.Resize, "replica"))
    assert run.controller.members.get("replica", "r1") is None
    given += run.catch_up(c.Interrupt, leave=(c.Route, c.Resize, "replica"))
    assert changed(given) == ["Resize r0"]
    assert of(c.Resize, given)[0].tp == 2


def test_a_new_one_starts_once_the_one_whose_devices_it_gets_is_gone(run, policy):
    """A plan of a stop and a start, with nothing that is resized."""
    plan = [c.StopReplica("r0"), c.StartReplica()]
    policy.plan = lambda view: [plan.pop(0) for _ in range(len(plan))]
    down = c.Down("relay", "0", "killed", c.Cause.DIED)
    given = run.go(down, leave=(c.Route, c.Interrupt, c.Stop))
    assert not changed(given)  # r0 holds trajectories
    emptied = run.catch_up(c.Interrupt, leave=(c.Route, c.Stop))
    assert changed(emptied) == ["Stop r0"]
    assert not changed(run.later(5.0, leave=(c.Route, c.Stop)))  # its process is there still
    assert changed(run.catch_up(c.Stop, leave=(c.Route,))) == ["Start r2"]


def test_one_that_waits_for_a_leaver_starts_if_the_leaver_dies(run, policy):
    plan = [c.StopReplica("r0"), c.StartReplica()]
    policy.plan = lambda view: [plan.pop(0) for _ in range(len(plan))]
    run.go(c.Down("relay", "0", "killed", c.Cause.DIED), leave=(c.Route, c.Interrupt, c.Stop))
    run.forget(c.Interrupt)
    assert changed(run.down("replica", "r0", leave=(c.Route,))) == ["Start r2"]


def test_after_the_drivers_death_replicas_start_at_their_new_size(run, policy):
    tick_over(run, policy, 2, leave=(c.Route, c.Interrupt, c.Stop, c.Resize))
    given = resume(run)
    replicas = [(one.id, one.tp) for one in of(c.Restart, given) if one.role == "replica"]
    assert replicas == [("r0", 2)]
    assert run.view.finished, run.view.failure


def test_replicas_that_a_resumed_run_adds_do_not_wait_for_a_resize_of_before(run, policy):
    tick_over(run, policy, 2, leave=(c.Route, c.Interrupt, c.Stop, c.Resize))
    given = run.handle(c.Resumed(tuple(run.controller.trainer.fallbacks), replicas=2))
    assert changed(given) == ["Restart r0", "Start r2"]  # r1 was to stop


@pytest.mark.parametrize("tp", [0, 3, -2])
def test_a_size_that_is_no_power_of_two_ends_the_run_with_a_line(run, policy, tp):
    policy.plan = lambda view: [c.ResizeReplica("r0", tp)]
    run.go(c.Down("relay", "0", "killed", c.Cause.DIED), leave=(c.Route,))
    assert run.view.failure is not None
    assert "expected a power of two of devices" in run.view.failure


def test_adaptive_tp_sees_the_rounds_of_a_run_and_resizes_as_one_begins():
    """Four prompts are launched for two, so that a long round follows each short one, and has a size of its own."""
    batching = load("batching", "tail-batching", prompts=2, samples=1, prompt_factor=2.0, sample_factor=1.0)
    run = Scripted(
        spec(
            admission=load("admission", "on-policy"), sync=load("sync", "barrier"), batching=batching, steps=2,
            buffer_groups=None, provisioning=AdaptiveTP(count=2, short=1, long=2),
        )
    )  # fmt: skip
    run.go(c.Tick())
    run.go(c.Up("replica", "r0"))
    assert run.view.finished
    assert [past.tp for past in run.controller.round_history.records] == [1, 2]
    assert changed(run.given)[:2] == ["Start r0", "Start r1"]
    assert [name for name in changed(run.given) if name not in ("Start r0", "Start r1")] == ["Stop r1", "Resize r0"]


def test_more_replicas_than_a_policy_said_end_the_run_with_a_line(run, policy):
    policy.growth = lambda: c.Growth(2, 2)
    greedy = Scripted(spec(provisioning=policy, steps=12))
    greedy.go(c.Tick(), leave=(c.Route,))
    assert not greedy.view.failure
    policy.plan = lambda view: [c.StartReplica()]
    greedy.go(c.Down("relay", "0", "killed", c.Cause.DIED), leave=(c.Route,))
    assert "expected no more than the 2 replicas that it may have" in greedy.view.failure
    assert "r2" not in {one.id for one in of(c.Start, greedy.given)}


def test_a_policy_that_asked_for_no_milestones_is_not_asked_when_nothing_changed(run, policy):
    asked = []
    policy.plan = lambda view: asked.append(view.now_s) or []
    for _ in range(3):
        run.later(1.0, leave=(c.Route,))
    assert asked == []
    run.go(c.Down("relay", "0", "killed", c.Cause.DIED), leave=(c.Route,))
    assert asked
