"""What a member said arrives behind the event with which it was lost: it counts no more."""

import dataclasses

import pytest
from scripted import Scripted, of, policy, spec

from tailrace import contracts as c


@pytest.mark.parametrize("cell", [None, 0])
def test_a_part_that_ended_as_the_trainer_was_lost_counts_no_more(cell):
    training = policy("training", "streamed") if cell == 0 else policy("training", "dynamic-batch", parts=2)
    run = Scripted(
        spec(training=training, recovery=policy("recovery", "role-based"), admission=policy("admission", "one-step"))
    )
    run.go(c.Tick(), leave=(c.Accumulate, c.Step, c.Route))
    route = of(c.Route, run.given)[0]
    names = [ref.trajectory for ref in route.trajectories][:2]
    run.go(
        *(c.Finished(route.replica, name, 3, answers=route.seq) for name in names),
        leave=(c.Accumulate, c.Step, c.Route),
    )
    (part,) = of(c.Accumulate, run.left)
    assert part.cell == cell
    given = run.go(
        c.Down("trainer", "0", "a hybrid on its devices died", c.Cause.DIED),
        c.Accumulated(part.version, part.trajectories, answers=part.seq, cell=cell),
        leave=("trainer", "data", "scorer", "relay", "replica", c.Route, c.Step),
    )
    assert [command.role for command in of(c.Restart, given)].count("trainer") == 1
    assert run.view.failure is None


def test_a_step_that_ended_as_the_trainers_machine_was_given_up_is_made_again():
    run = Scripted(spec(recovery=policy("recovery", "isolate")))
    run.machines = {("relay", "0"): "a", ("trainer", "0"): "a", ("replica", "r0"): "b", ("replica", "r1"): "b"}
    run.go(c.Tick(), leave=(c.Step,))
    down = c.Down("relay", "0", "killed", c.Cause.DIED, "a")
    for _ in range(3):
        run.go(down, leave=(c.Step, c.Publish))
    (step,) = of(c.Step, run.left)
    run.machines.clear()
    given = run.go(down, c.Stepped(step.version, answers=step.seq), leave=(c.Step,))
    assert {command.role for command in of(c.Restart, given)} == {"relay", "trainer"}
    assert not run.view.step
    assert [again.version for again in of(c.Step, given)] == [step.version]
    run.left = run.left[1:]
    run.catch_up()
    assert run.view.finished
    assert run.view.counts.trained == 6


@dataclasses.dataclass(frozen=True)
class Suspects(c.DetectionPolicy):
    """Suspects r1 once r3 says that it stands still."""

    look_s: float = 1.0

    def suspects(self, signs):
        still = any(sign.still_s for sign in signs)
        return [c.Suspected("replica", "r1", c.Reason(c.Why.STILL, numbers={"still_s": 9.0}))] if still else []

    def within_s(self, role):
        return float("inf")


@pytest.mark.parametrize("said", [c.Pulled("r1", 0), c.PullFailed("r1", 0, "the relay is gone")])
def test_a_pull_of_a_replica_that_was_just_suspected_says_nothing_of_its_next_process(said):
    run = Scripted(spec(provisioning=policy("provisioning", "static", count=4), detection=Suspects()))
    run.go(c.Tick(), leave=(c.Pull,))
    still = c.Activity("replica", "r3", "generating", still_s=9.0)
    given = run.go(still, said, leave=("replica", c.Pull))
    assert [command.id for command in of(c.Restart, given)] == ["r1"]
    replica = run.controller.fleet.replicas["r1"]
    assert (replica.version, replica.failed_pulls, replica.pulls_from_s) == (None, 0, 0.0)
    run.go(dataclasses.replace(still, still_s=0.0))
    given = run.catch_up("replica", leave=(c.Pull, c.Route))
    assert "r1" in [command.replica for command in of(c.Pull, given)]
    assert "r1" not in [command.replica for command in of(c.Route, given)]
