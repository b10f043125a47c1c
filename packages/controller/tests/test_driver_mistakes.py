"""A driver that answers what was not asked is told so in one line; what comes late changes nothing."""

import math

import pytest
from scripted import Scripted, of, spec

from tailrace import contracts as c
from tailrace.controller import ControllerError, PolicyError


@pytest.fixture
def run():
    """A run whose replicas generate: nothing they were given is finished."""
    scripted = Scripted(spec(steps=3))
    scripted.go(c.Tick(), leave=(c.Route,))
    return scripted


@pytest.mark.parametrize(
    ("event", "line"),
    [
        (c.Finished("r0", "nope", 3), r"found trajectory 'nope', expected one of the \d+ groups that were admitted"),
        (c.Finished("r0", "999.0", 3), r"found trajectory '999.0', expected one of the \d+ groups"),
        (c.Interrupted("r0", "nope", 3), r"found trajectory 'nope'"),
        (c.Scored("nope", 1.0), r"found trajectory 'nope'"),
        (c.Finished("r99", "0.0", 3), r"found replica 'r99', expected one that was started: r0"),
        (c.Pulled("r99", 0), r"found replica 'r99'"),
        (c.Pulled("r0", 7), r"found Pulled\(7\), expected at most 0, the newest version that was made"),
        (c.Published(7), r"found Published\(7\), expected at most 0"),
        (c.Durable(7), r"found Durable\(7\), expected at most 0"),
        (c.Up("trainer", "0", version=7), r"found a trainer at version 7, expected one of \[0\], which were made"),
        (c.Stepped(1), r"found Stepped\(1\) while the trainer makes None"),
        (c.Accumulated(1, ("0.0",)), r"found Accumulated\(1\) while the trainer works on None"),
        (c.Finish(3), r"found Finish\(seq=3\), expected an event"),
        ("a step", r"found 'a step', expected an event"),
        (None, r"found None, expected an event"),
    ],
)
def test_it_is_refused_in_one_line_before_anything_changes(run, event, line):
    before = run.controller.state()
    with pytest.raises(ControllerError, match=rf"^{line}") as found:
        run.controller.handle(event, 50.0)
    assert "\n" not in str(found.value)
    after = run.controller.state()
    assert after.pop("state") | {"now": 0} == before.pop("state") | {"now": 0}
    assert after == before


def test_what_comes_late_or_twice_changes_nothing(run):
    route = of(c.Route, run.given)[0]
    name = route.trajectories[0].trajectory
    finished = c.Finished(route.replica, name, 40)
    run.controller.handle(finished, 51.0)
    ledger = run.controller.state()["ledger"]
    run.controller.handle(finished, 52.0)
    run.controller.handle(c.Scored("0.0" if name != "0.0" else "0.1", 1.0), 53.0)
    assert run.controller.state()["ledger"]["counts"] == ledger["counts"]


@pytest.mark.parametrize("now", [math.nan, math.inf])
def test_a_time_that_is_no_number_is_refused(run, now):
    with pytest.raises(ControllerError, match="expected seconds on the run's clock"):
        run.controller.handle(c.Tick(), now)


@pytest.mark.parametrize(("name", "value"), [("replica_batch", 0), ("batch_groups", "4"), ("steps", -1), ("tp", 1.5)])
def test_numbers_that_leave_nothing_to_do_are_refused(name, value):
    """With no room on a replica nothing was routed, and the run stood still."""
    with pytest.raises(PolicyError, match=f"found {name}={value!r}, expected a whole number of at least"):
        spec(**{name: value})
