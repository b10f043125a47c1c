"""How a run comes up: everybody is started by command, and nobody is given anything that it could not do yet."""

import pytest
from scripted import Scripted, of, spec

from tailrace import contracts as c


@pytest.fixture
def run():
    return Scripted(relays=2)


def test_every_member_is_started_at_the_first_event(run):
    started = run.go(c.Tick(), leave=(c.Start,))
    assert [(command.role, command.id) for command in started] == [
        ("data", "0"), ("scorer", "0"), ("relay", "0"), ("relay", "1"), ("trainer", "0"), ("replica", "r0"), ("replica", "r1"),
    ]  # fmt: skip
    assert [command.place.index for command in of(c.Start, started) if command.role == "relay"] == [0, 1]
    assert all(command.reason.why is c.Why.PLANNED for command in started if command.role == "replica")
    assert run.go(c.Tick(), leave=(c.Start,)) == []


def test_it_runs_to_its_end(run):
    run.go(c.Tick())
    assert run.view.finished
    assert (run.view.step, run.view.counts.trained, run.view.counts.admitted) == (3, 6, 6)
    assert run.go(c.Tick()) == []


def test_nothing_is_published_before_a_relay_is_up(run):
    given = run.go(c.Tick(), leave=("relay",))
    assert not of((c.Publish, c.Pull, c.Route, c.Step), given)
    assert run.view.trainer_up
    up = c.Up("relay", "1", address="somewhere")
    assert [command.relays for command in of(c.Publish, run.go(up, leave=(c.Pull,)))] == [{"1": "somewhere"}]


def test_a_replica_is_told_of_the_relays_that_are_up(run):
    given = run.go(c.Tick(), leave=(c.Route,))
    assert {command.replica: set(command.sources) for command in of(c.Pull, given)} == {
        "r0": {"relay-0", "relay-1"},
        "r1": {"relay-0", "relay-1"},
    }
    assert len({command.sources[0] for command in of(c.Pull, given)}) == 2  # they are spread over them


def test_relays_of_its_own_machine_are_the_best_for_a_replica(run):
    run.machines = {("relay", "0"): "m0", ("relay", "1"): "m1", ("replica", "r0"): "m1", ("replica", "r1"): "m1"}
    given = run.go(c.Tick(), leave=(c.Route,))
    assert [command.sources for command in of(c.Pull, given)] == [("relay-1", "relay-0")] * 2


def test_nothing_is_published_that_was_and_every_relay_hears_of_it(run):
    run.go(c.Tick(), leave=(c.Route,))
    run.down("relay", "0", leave=("relay",))
    again = run.catch_up("relay", leave=(c.Route,))
    assert [(command.version, sorted(command.relays)) for command in of(c.Publish, again)] == [(0, ["0", "1"])]


def test_what_finishes_is_scored_once_a_scorer_is_up():
    run = Scripted(spec(replica_batch=2))
    given = run.go(c.Tick(), leave=("scorer",))
    assert of(c.Route, given)
    assert not of(c.Score, given)
    scored = of(c.Score, run.catch_up(leave=(c.Step,)))
    assert len(scored) >= 1
    assert set(scored[0].trajectories) == {ref.trajectory for route in of(c.Route, given) for ref in route.trajectories}


def test_training_waits_until_its_weights_are_on_their_way():
    run = Scripted()
    run.go(c.Tick(), leave=(c.Step,))
    run.down("relay", leave=("relay",))
    run.down("trainer", leave=("trainer",))
    given = run.catch_up("trainer", leave=(c.Step, "relay"))
    assert not of(c.Publish, given)
    assert not of(c.Step, given)
    assert of(c.Step, run.go(c.Up("relay", "0", address="new"), leave=(c.Step,)))
