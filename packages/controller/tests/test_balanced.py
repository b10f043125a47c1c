"""A fleet that follows its stages: what the controller measures of an iteration, and how a replica joins and leaves."""

import pytest
from scripted import Scripted, of, policy, spec
from test_changes import resume

from tailrace import contracts as c
from tailrace.contracts import IterationRecord
from tailrace.repack import Balanced

GROUPS, SAMPLES = 2, 2


class Turns(Scripted):
    """Generation and training take turns, and each takes as long as it is told."""

    def __init__(self, **changes):
        fields = {
            "admission": policy("admission", "on-policy"),
            "sync": policy("sync", "barrier"),
            "buffer_groups": None,
            "provisioning": Balanced(count=2, patience=2, cooldown=1),
            "steps": 12,
        }
        super().__init__(spec(**{**fields, **changes}))
        self.go(c.Tick(), leave=(c.Route,))

    def iterate(self, generation_s, training_s, *, leave=()):
        """One iteration; returns the commands at its end."""
        self.later(generation_s, leave=(c.Route, c.Step, *leave))
        self.catch_up(c.Route, leave=(c.Step, *leave))
        self.later(training_s, leave=(c.Route, c.Step, *leave))
        return self.catch_up(c.Step, leave=(c.Route, *leave))

    @property
    def records(self):
        return list(self.controller.provisioning.iterations.records)


def names(kind, commands):
    return [one.id for one in of(kind, commands) if one.role == "replica"]


def test_an_iteration_has_the_seconds_of_both_stages_and_the_first_is_none():
    run = Turns()
    run.iterate(50.0, 7.0)
    assert run.records == []
    run.iterate(3.0, 4.0)
    run.iterate(2.0, 5.0)
    assert run.records == [
        IterationRecord(2, 7.0, 3.0, 4.0, 2, GROUPS * SAMPLES),
        IterationRecord(3, 7.0, 2.0, 5.0, 2, GROUPS * SAMPLES),
    ]
    view = run.controller.provisioning.view()
    assert (list(view.iterations), list(view.lengths)) == (run.records, [10] * 12)


def test_only_a_policy_that_asks_for_them_has_iterations():
    run = Turns(provisioning=policy("provisioning", "static", count=2))
    for _ in range(3):
        run.iterate(3.0, 4.0)
    view = run.controller.provisioning.view()
    assert (view.iterations, view.lengths) == ((), ())


def test_the_replica_with_most_to_do_counts():
    run = Turns()
    run.iterate(1.0, 1.0)
    first, second = [one for one in run.left if isinstance(one, c.Route)]
    run.later(2.0, leave=(c.Route,))
    run.left = [second]
    run.go(*run.answers(first), leave=(c.Step,))
    run.later(5.0, leave=(c.Step,))
    run.catch_up(c.Route, leave=(c.Step,))
    run.later(1.5, leave=(c.Step,))
    run.catch_up(c.Step, leave=(c.Route,))
    assert [(one.seconds, one.generation_s, one.training_s) for one in run.records] == [(8.5, 7.0, 1.5)]


@pytest.mark.parametrize("role", ["replica", "trainer"])
def test_an_iteration_in_which_a_member_fails_is_marked(role):
    run = Turns()
    run.iterate(1.0, 1.0)
    run.iterate(1.0, 1.0)
    run.down(role, "r1" if role == "replica" else "0", leave=(c.Route, c.Step))
    for _ in range(2):
        run.iterate(1.0, 1.0)
    assert [one.replicas for one in run.records][-2:] == [0, 2]


def test_one_joins_pulls_and_only_then_serves():
    run = Turns(sync=policy("sync", "on-idle"), batch_groups=3)
    for _ in range(2):
        run.iterate(9.0, 1.0)
    given = run.iterate(9.0, 1.0, leave=("replica",))
    (start,) = [one for one in of(c.Start, given) if one.role == "replica"]
    assert (start.id, start.reason.why) == ("r2", c.Why.GENERATION_SLOWER)
    assert start.reason.numbers == {"generation_s": 9.0, "training_s": 1.0, "saved_s": pytest.approx(3.0)}
    assert names(c.Start, run.iterate(9.0, 1.0, leave=("replica",))) == []  # it waits for the one that starts
    assert "r2" not in {one.replica for one in of((c.Route, c.Pull), run.given)}
    up = run.catch_up("replica", leave=(c.Pull, c.Route))
    assert [one.replica for one in of(c.Pull, up)] == ["r2"]
    run.later(9.0, leave=(c.Route, c.Pull))
    assert "r2" not in {one.replica for one in of(c.Route, run.given)}
    run.catch_up(c.Pull, leave=(c.Route,))
    run.iterate(9.0, 1.0)
    assert "r2" in {one.replica for one in of(c.Route, run.given)}


def test_a_joiner_that_dies_while_it_starts_starts_again():
    run = Turns()
    for _ in range(3):
        run.iterate(9.0, 1.0, leave=("replica",))
    assert names(c.Start, run.left) == ["r2"]
    run.forget("replica")
    again = run.down("replica", "r2", leave=(c.Route, c.Step, "replica"))
    assert names(c.Restart, again) == ["r2"]
    run.catch_up("replica", leave=(c.Route, c.Step))
    for _ in range(9):
        run.iterate(1.0, 1.0)
    assert run.view.finished, run.view.failure
    assert run.view.counts.trained == 12 * GROUPS


def test_one_leaves_once_the_others_are_up_and_nothing_is_lost():
    run = Turns(provisioning=Balanced(count=2, patience=2, cooldown=0))
    for _ in range(2):
        run.iterate(1.0, 9.0)
    run.later(1.0, leave=(c.Route, c.Step))
    run.catch_up(c.Route, leave=(c.Step,))
    run.later(9.0, leave=(c.Step,))
    step = next(one for one in run.left if isinstance(one, c.Step))
    run.left.remove(step)
    died = c.Down("replica", "r0", "killed", c.Cause.DIED)
    assert names(c.Stop, run.go(*run.answers(step), died, leave=(c.Route, "replica"))) == []
    held = {ref.trajectory for one in run.left if isinstance(one, c.Route) for ref in one.trajectories}
    given = run.catch_up("replica", leave=(c.Route, c.Step))
    assert names(c.Stop, given) == ["r0"]  # it holds nothing, and r1 does
    assert held
    assert not of(c.Interrupt, given)
    for _ in range(9):
        run.iterate(1.0, 9.0)
    assert run.view.finished, run.view.failure
    assert run.view.counts.trained == 12 * GROUPS
    assert [one.id for one in run.controller.members.of("replica")] == ["r1"]


def test_after_the_drivers_death_the_fleet_is_as_large_as_it_was():
    run = Turns()
    for _ in range(3):
        run.iterate(9.0, 1.0)
    before = run.controller.provisioning.iterations.records.copy()
    given = resume(run)
    assert sorted(names(c.Restart, given)) == ["r0", "r1", "r2"]
    assert list(before) == run.records[: len(before)]
    assert run.view.finished, run.view.failure


def test_the_reason_of_a_removal_has_its_numbers():
    run = Turns()
    for _ in range(4):
        run.iterate(1.0, 9.0)
    (stop,) = [one for one in of(c.Stop, run.given) if one.role == "replica"]
    assert stop.reason.why is c.Why.TRAINING_SLOWER
    assert stop.reason.numbers == {"generation_s": 1.0, "training_s": 9.0, "cost_s": pytest.approx(1.0)}
