"""Hybrids: replicas on the trainer's devices yield to it for its steps and come back, and their faults are its own."""

import pytest
from scripted import Scripted, of, policy, spec

from tailrace import contracts as c
from tailrace.controller.spec import RolloutPool

HYBRID = policy("provisioning", "hybrid", count=2)


def started(recovery="role-based", options=None, **changes):
    batching = policy("batching", "plain", samples=2)
    run = Scripted(
        spec(
            batching=batching, sync=policy("sync", "barrier"), steps=3,
            batch_groups=2, replica_batch=8, buffer_groups=None, colocated=True,
            recovery=policy("recovery", recovery, **(options or {})),
            **{"admission": policy("admission", "on-policy"), "provisioning": HYBRID, **changes},
        )
    )  # fmt: skip
    run.go(c.Tick(), leave=(c.Route, c.Score, c.Step))
    return run


def on(run, replica):
    routes = [route for route in of(c.Route, run.given) if route.replica == replica]
    return [ref.trajectory for route in routes for ref in route.trajectories]


def shows(run, replica, leave=(c.Route, c.Score, c.Step)):
    """A snapshot that shows all commands."""
    state = run.controller.fleet.replicas[replica]
    held = len(state.assigned.states)
    return run.go(c.Snapshot(replica, 0.1, held, 0, 0, state.version, 10_000), leave=leave)


def all_complete(run):
    names = {replica: on(run, replica) for replica in ("r0", "r1")}
    first, last = [(replica, name) for replica, found in names.items() for name in found][:-1], None
    replica, last = next((one, found[-1]) for one, found in reversed(names.items()) if found)
    run.go(*(c.Finished(where, name, 10) for where, name in first), leave=(c.Route, c.Step))
    assert not of(c.Lend, run.given)
    run.go(c.Finished(replica, last, 10), leave=(c.Route, c.Step))


def test_the_trainer_steps_once_every_hybrid_has_left_its_devices_and_knows():
    run = started()
    all_complete(run)
    lends = of(c.Lend, run.given)
    assert [(lend.replica, lend.reason.why) for lend in lends] == [("r0", c.Why.POLICY), ("r1", c.Why.POLICY)]
    assert dict(lends[0].reason.numbers) == {"done": 2.0, "groups": 2.0}
    assert not of(c.Step, run.given)  # until snapshots show that both know
    shows(run, "r0")
    assert not of(c.Step, run.given)
    shows(run, "r1")
    (step,) = of(c.Step, run.given)
    assert not of(c.Return, run.given)
    run.go(c.Stepped(step.version, {}, answers=step.seq), leave=(c.Route, c.Score, c.Step))
    assert {back.replica for back in of(c.Return, run.given)} == {"r0", "r1"}
    assert run.controller.lending.lent == []


def test_a_trainer_that_comes_back_gets_its_batch_again_and_hybrids_wait_for_it():
    run = started()
    all_complete(run)
    shows(run, "r0")
    shows(run, "r1")
    run.controller.failures.troubles.first_iteration = False
    run.go(c.Down("trainer", "0", "killed"), leave=(c.Restart, c.Step))
    assert not of(c.Return, run.given)  # nothing changes hands while it is away
    assert len(of(c.Restart, run.given)) == 1
    run.go(c.Up("trainer", "0"), leave=(c.Step, c.Publish))
    assert run.controller.lending.lent == ["r0", "r1"]


@pytest.mark.parametrize(
    ("recovery", "restarted"), [("role-based", [("replica", "r0"), ("trainer", "0")]), ("isolate", [("replica", "r0")])]
)
def test_a_hybrids_fault_is_the_trainers_where_recovery_says_so(recovery, restarted):
    run = started(recovery)
    run.controller.failures.troubles.first_iteration = False
    run.go(c.Down("replica", "r0", "killed", c.Cause.DIED), leave=(c.Restart, c.Route))
    found = {(one.role, one.id): one.reason for one in of(c.Restart, run.given)}
    assert sorted(found) == restarted
    assert found["replica", "r0"].why is c.Why.FAILED
    if recovery == "role-based":
        assert (found["trainer", "0"].why, found["trainer", "0"].who) == (c.Why.HYBRID, "r0")


def test_nobody_begins_anew_on_devices_of_a_trainer_that_ends_the_run():
    run = started(options={"max_task_restarts": 0})  # in the first iteration
    given = run.go(c.Down("replica", "r0", "killed", c.Cause.DIED), leave=(c.Restart, c.Route, c.Fail))
    assert "replica r0, on its devices, is down: killed" in of(c.Fail, given)[0].reason
    assert not of(c.Restart, given)


def test_in_the_first_iteration_the_task_restarts_once_for_both():
    run = started()
    run.go(c.Down("replica", "r0", "killed", c.Cause.DIED), leave=(c.Restart, c.Route))
    restarted = [(one.role, one.id) for one in of(c.Restart, run.given)]
    assert len(restarted) == len(set(restarted))
    assert run.view.task_restarts == 1


@pytest.mark.parametrize("together", [False, True])
def test_generation_under_new_weights_begins_when_each_has_them_or_when_all_do(together):
    """RobustRL, section 5.2.1: in semi-sync no rollout phase begins until all rollouts have finished updating."""
    sync = policy("sync", "when-drained", together=together)
    one_step = policy("admission", "one-step")
    run = Scripted(spec(admission=one_step, sync=sync, replica_batch=4, batch_groups=2, steps=6, buffer_groups=None))
    run.go(c.Tick(), leave=(c.Pull,))
    pulls = {pull.replica: pull for pull in run.left}
    assert pulls.keys() == {"r0", "r1"}
    first, last = pulls.values()
    run.left.clear()
    given = run.go(*run.answers(first), leave=(c.Route, c.Pull))
    assert {route.replica for route in of(c.Route, given)} == (set() if together else {first.replica})
    given = run.go(*run.answers(last), leave=(c.Route, c.Pull))
    begun = {route.replica for route in of(c.Route, given)}
    assert begun == ({first.replica, last.replica} if together else {last.replica})
    # One that went down is not waited for.
    run.go(c.Down(last.replica and "replica", last.replica, "killed"), leave=("replica", c.Route, c.Pull))
    assert run.controller.owned.progress().behind == 0


def test_a_hybrid_that_is_given_up_is_not_waited_for():
    run = started("isolate")
    for _ in range(4):
        run.down("replica", "r1", leave=(c.Route, c.Score, c.Step))
    assert [row["id"] for row in run.view.given_up] == ["r1"]
    state = run.controller.fleet.replicas["r0"]
    run.go(*(c.Finished("r0", name, 10) for name in list(state.assigned.states)), leave=(c.Route, c.Step))
    assert [lend.replica for lend in of(c.Lend, run.given)] == ["r0"]
    shows(run, "r0")
    assert len(of(c.Step, run.given)) == 1


def test_a_hybrid_yields_once_its_share_of_the_batch_is_complete_while_others_generate():
    pools = (RolloutPool("with", 1, replica_batch=2, hybrid=True), RolloutPool("without", 1, replica_batch=2))
    run = started(provisioning=policy("provisioning", "hybrid", count=2, yields_at=0.5), pools=pools)
    replicas = run.controller.fleet.replicas
    hybrid, other = sorted(replicas, key=lambda name: not replicas[name].cells)
    assert replicas[hybrid].cells
    assert not replicas[other].cells
    assert not of(c.Lend, run.given)
    run.go(*(c.Finished(other, name, 10) for name in on(run, other)), leave=(c.Route, c.Step))
    (lend,) = of(c.Lend, run.given)
    assert (lend.replica, dict(lend.reason.numbers)) == (hybrid, {"done": 1.0, "groups": 2.0})


def test_what_is_complete_of_the_batch_after_makes_no_hybrid_yield():
    pools = (RolloutPool("with", 1, replica_batch=4, hybrid=True), RolloutPool("without", 1, replica_batch=4))
    ahead = {"admission": policy("admission", "one-step"), "pools": pools}
    run = started(provisioning=policy("provisioning", "hybrid", count=2, yields_at=0.5), **ahead)
    where = {name: replica for replica in ("r0", "r1") for name in on(run, replica)}
    assert {name.split(".")[0] for name in where} == {"0", "1", "2", "3"}  # two batches

    def completes(*groups):
        names = [f"{group}.{sample}" for group in groups for sample in (0, 1)]
        run.go(*(c.Finished(where[name], name, 10) for name in names), leave=(c.Route, c.Step))

    completes(2, 3)
    assert not of(c.Lend, run.given)
    completes(1)
    assert [dict(lend.reason.numbers) for lend in of(c.Lend, run.given)] == [{"done": 1.0, "groups": 2.0}]


@pytest.mark.parametrize("numbers", [{"still_s": 40.0, "limit_s": 30.0}, {"still_s": 40.0}])
def test_a_limit_that_a_detection_of_your_own_does_not_say_is_not_told(numbers):
    run = started(options={"max_task_restarts": 0})
    member = run.controller.members.get("replica", "r0")
    event = c.Down("replica", "r0", "stood still", c.Cause.STILL)
    run.controller.failures.went_down(event, c.Reason(c.Why.STILL, numbers=numbers))
    assert member.health is c.Health.DOWN or run.view.failure is not None
    assert ("a replica may stand still for 30 s" in (run.view.failure or "")) is ("limit_s" in numbers)
