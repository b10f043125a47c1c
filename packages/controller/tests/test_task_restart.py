"""The whole task restarts within a run: what the store holds is kept, or the step begins over."""

import pytest
from scripted import Scripted, of, policy, spec

from tailrace import contracts as c

ROLES = ("data", "scorer", "relay", "trainer", "replica")


def role_based(**limits):
    return policy("recovery", "role-based", **limits)


def members(commands):
    return [(command.role, command.id, str(command.reason.why)) for command in of(c.Restart, commands)]


def in_second_iteration(**options):
    """A run whose first batch is trained on, and whose trainer has its second."""
    run = Scripted(spec(**options))
    run.go(c.Tick(), leave=(c.Step,))
    run.catch_up(c.Step, leave=(c.Step,))
    assert run.view.step == 1
    assert run.view.making == 2
    return run


def everything(why, culprit):
    found = [(role, "0", "task-restart") for role in ("data", "scorer", "relay", "trainer")]
    found += [("replica", name, "task-restart") for name in ("r0", "r1")]
    return [(role, id_, why if (role, id_) == culprit else "task-restart") for role, id_, _ in found]


def test_a_fault_of_the_trainer_restarts_the_trainer_alone_and_takes_no_new_batch():
    run = in_second_iteration(recovery=role_based())
    admitted = run.view.counts.admitted
    given = run.down("trainer", leave=("trainer", c.Route))
    assert members(given) == [("trainer", "0", "failed")]
    assert of(c.Restart, given)[0].version == 1
    assert run.view.counts.admitted == admitted
    run.catch_up("trainer", leave=(c.Step, c.Route))
    assert run.view.making is not None
    assert run.view.task_restarts == 0


def test_a_fault_in_the_first_iteration_restarts_the_task_with_what_the_store_holds():
    run = Scripted(spec(recovery=role_based()))
    run.go(c.Tick(), leave=(c.Step,))
    done = {ref.trajectory for route in of(c.Route, run.given) for ref in route.trajectories}
    run.forget(c.Step)
    run.held = tuple(sorted(done))
    given = run.down("trainer", leave=ROLES)
    assert members(given) == everything("failed", ("trainer", "0"))
    assert {command.version for command in of(c.Restart, given) if command.role == "data"} == {0}
    assert run.view.task_restarts == 1
    run.catch_up(leave=(c.Step, c.Route))
    again = {
        ref.trajectory for route in of(c.Route, run.given) for ref in route.trajectories if route.seq > given[-1].seq
    }
    assert not again & done  # nothing that was complete is generated again
    assert run.view.making is not None
    run.forget(c.Route)
    run.catch_up()
    assert run.view.failure is None


def test_the_second_fault_in_one_step_restarts_the_task():
    run = in_second_iteration(recovery=role_based())
    run.forget(c.Step)
    assert len(members(run.down("trainer", leave=(c.Step,)))) == 1
    run.forget(c.Step)
    assert len(members(run.down("trainer", leave=ROLES))) == 6


def test_a_trainer_that_does_not_come_up_again_twice_restarts_the_task():
    run = in_second_iteration(recovery=role_based())
    run.forget(c.Step)
    for expected in (1, 1, 6):
        assert len(members(run.down("trainer", leave=ROLES))) == expected
        run.forget(*ROLES)


def test_after_too_many_restarts_of_the_task_the_run_fails_and_names_every_cause():
    run = Scripted(spec(recovery=role_based(max_task_restarts=2)))
    run.go(c.Tick(), leave=(c.Step,))
    for reason in ("first", "second", "third"):
        run.forget(c.Step)
        run.held = tuple(run.controller.ledger.trajectories)
        run.down("trainer", reason=reason, leave=(c.Step, c.Route))
        run.forget(c.Route)
    assert run.view.task_restarts == 2
    assert run.view.failure == (
        "trainer 0 is down and is not restarted: third (failure 1 of it without work in between); the task had "
        "been restarted for trainer 0: first; trainer 0: second"
    )
    run.forget()
    run.go(c.Resumed(tuple(run.controller.trainer.fallbacks)), leave=(c.Step, c.Route))
    for reason in ("fourth", "fifth", "sixth"):
        run.forget(c.Step, c.Route)
        run.held = tuple(run.controller.ledger.trajectories)
        run.down("trainer", reason=reason, leave=(c.Step, c.Route))
    assert run.view.failure.endswith("the task had been restarted for trainer 0: fourth; trainer 0: fifth")


def test_what_else_arrives_at_that_moment_still_counts():
    """A report of the same instant comes from a member that was alive: it is taken in before all restart."""
    run = Scripted(spec(recovery=role_based()))
    run.go(c.Tick(), leave=(c.Route,))
    route = of(c.Route, run.given)[0]
    name = route.trajectories[0].trajectory
    run.held = (name,)
    given = run.go(
        c.Down("trainer", "0", "killed", c.Cause.DIED),
        c.Finished(route.replica, name, 7, answers=route.seq),
        leave=ROLES,
    )
    assert len(members(given)) == 6
    run.forget(c.Route)
    run.catch_up(leave=(c.Route, c.Score))
    assert any(name in score.trajectories for score in of(c.Score, run.given))


def test_restart_task_begins_the_step_over_and_trains_on_every_prompt_once():
    run = in_second_iteration(recovery=policy("recovery", "restart-task"))
    run.forget(c.Step)
    before = set(run.controller.ledger.trajectories)
    kept = {state.id for state in run.controller.ledger.batch(1)}
    run.held = tuple(sorted(before))
    given = run.down("replica", "r1", leave=(*ROLES, c.Abort))  # the store is not there to answer
    assert members(given) == everything("failed", ("replica", "r1"))
    (abort,) = of(c.Abort, given)
    assert abort.reason.why is c.Why.TASK_RESTART
    assert set(abort.trajectories) == before - kept
    assert run.view.buffered == 0
    run.catch_up()
    again = [ref for route in of(c.Route, run.given) if route.seq > given[-1].seq for ref in route.trajectories]
    assert {ref.trajectory for ref in again} >= before - kept
    assert {ref.kept for ref in again} == {0}
    assert run.view.finished
    assert run.view.counts.trained == 6
    assert run.view.counts.prompts == 6 + run.view.counts.filtered + run.view.counts.failed
    assert run.view.counts.regenerated_trajectories == len(before - kept)


@pytest.mark.parametrize("name", ["role-based", "restart-task"])
def test_a_replica_that_is_about_to_stop_leaves_with_the_restart(name):
    class Fewer(c.ProvisioningPolicy):
        count = 2

        def plan(self, view):
            here = [member for member in view.of("replica") if member.health is not c.Health.STOPPING]
            if not view.members or not view.of("replica"):
                return [c.StartReplica(), c.StartReplica()]
            return [c.StopReplica(here[-1].id)] if len(here) > 1 and view.progress.version else []

    run = Scripted(spec(provisioning=Fewer(), recovery=policy("recovery", name)))
    run.go(c.Tick(), leave=(c.Step, c.Route))
    run.forget(c.Route)
    stopping = run.controller.members.get("replica", "r1")
    stopping.health = c.Health.STOPPING
    given = run.down("trainer", leave=ROLES)
    assert [(command.role, command.id) for command in of(c.Stop, given)] == [("replica", "r1")]
    assert ("replica", "r1", "task-restart") not in members(given)
    assert run.controller.members.get("replica", "r1") is None


def test_after_a_restart_of_the_task_nothing_is_pulled_until_the_trainer_has_published_again():
    """All relays that had the published version are gone."""
    run = Scripted(spec(recovery=role_based()))
    run.go(c.Tick(), leave=(c.Step,))
    assert run.view.published == 0
    run.forget(c.Step)
    run.held = tuple(run.controller.ledger.trajectories)
    run.down("trainer", leave=ROLES)
    assert not of(c.Pull, run.catch_up("data", "scorer", "relay", "replica", leave=(c.Route,)))
    assert run.view.published < 0
    assert {pull.replica for pull in of(c.Pull, run.catch_up("trainer", leave=(c.Step, c.Route)))} == {"r0", "r1"}


class Answering(c.RecoveryPolicy):
    """Gives these answers, one after the other, and notes the failures for which it was asked."""

    window_s = 600.0

    def __init__(self, *answers):
        self.answers, self.seen = list(answers), []

    def on_down(self, failure):
        self.seen.append((failure.role, failure.failures))
        return self.answers.pop(0)


TASK, OVER, FAIL = c.RecoveryAction.RESTART_TASK, c.RecoveryAction.START_OVER, c.RecoveryAction.FAIL


def missed(*roles):
    return [c.Down(role, "0", f"{role} was missed", c.Cause.DIED) for role in roles]


def test_a_member_that_is_missed_twice_at_once_before_the_task_restarts_has_failed_once():
    recovery = Answering(TASK)
    run = Scripted(spec(recovery=recovery))
    run.go(c.Tick(), leave=(c.Step,))
    run.handle(*missed("trainer", "trainer"))
    assert recovery.seen == [("trainer", 1)]


@pytest.mark.parametrize(("answers", "over"), [((TASK, TASK), False), ((OVER, TASK), True), ((TASK, OVER), True)])
def test_of_several_restarts_of_the_task_at_once_one_that_starts_over_is_enough(answers, over):
    run = in_second_iteration(recovery=Answering(*answers))
    run.held = tuple(run.controller.ledger.trajectories)
    given = run.handle(*missed("trainer", "scorer"))
    assert bool(of(c.Abort, given)) is over
    assert run.view.task_restarts == 1


@pytest.mark.parametrize(("steps", "kept"), [(0, True), (1, True), (2, True), (3, False)])
def test_why_the_task_restarted_is_forgotten_once_the_step_in_which_it_did_is_done(steps, kept):
    run = Scripted(spec(steps=9, checkpoint_every=9, recovery=Answering(TASK, FAIL)))
    run.go(c.Tick(), leave=(c.Step,))
    for _ in range(2):
        run.catch_up(c.Step, leave=(c.Step,))
    for number, due in enumerate((0, steps)):
        for _ in range(due):
            run.catch_up(c.Step, leave=(c.Step,))
        assert run.view.step == (steps if number else 2)
        run.forget(c.Step)
        run.held = tuple(run.controller.ledger.trajectories)
        run.down("trainer", reason=f"reason {number}", leave=(c.Step,))
    assert run.view.failure.endswith("; the task had been restarted for trainer 0: reason 0") is kept
