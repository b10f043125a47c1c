"""The figures of what runs beside each other, on logs worked out by hand."""

import pytest

from tailrace import contracts as c
from tailrace.pipeline.run.figures.stream import StreamFigures


def figures(*instants):
    found = StreamFigures()
    for now, *happened in instants:
        events = [one for one in happened if isinstance(one, c.Event)]
        found.observe(now, events, [one for one in happened if not isinstance(one, c.Event)])
    return found


def finished(name, replica="r0"):
    return c.Finished(replica, name, 5)


def add(version, *names):
    return c.Accumulate(version, version, names, update=False, cell=0)


def step(version, *names):
    return c.Step(version, version, (names,) if names else ())


def route(*names, replica="r0"):
    return c.Route(1, replica, tuple(c.TrajectoryRef(name, 0, 0) for name in names))


def pull(version):
    return c.Pull(2, "r0", version, ())


def trainer(phase):
    return c.Activity("trainer", "0", phase)


def test_a_lead_is_from_the_first_part_to_the_last_token():
    early = figures(
        (1, finished("a")),
        (2, add(1, "a")),
        (5, finished("b")),
        (6, c.Accumulated(1, ("a",)), step(1, "b")),
        (7, c.Stepped(1)),
    )
    assert early.leads_s == {1: 3.0}
    assert early.plain()["first_part_lead_s"] == 3.0


def test_the_last_token_of_a_batch_may_be_of_a_response_that_its_environment_ends():
    turns = (1, c.TurnEnded("r0", "a", 5)), (3, c.Turned("a", 1, 5, done=True))
    found = figures((0, route("a")), *turns, (6, step(1, "a")), (8, c.Stepped(1)))
    assert found.leads_s == {1: -3.0}


def test_training_that_waits_for_the_batch_has_none():
    whole = figures((1, finished("a")), (5, finished("b")), (6, step(1, "a", "b")), (8, c.Stepped(1)))
    assert whole.leads_s == {1: -1.0}


def test_a_batch_whose_last_part_was_added_early_may_have_nothing_left_for_the_step():
    found = figures((1, finished("a")), (2, add(1, "a")), (3, c.Accumulated(1, ("a",)), step(1)), (4, c.Stepped(1)))
    assert found.leads_s == {1: -1.0}


def test_what_a_trainer_did_before_it_fell_back_does_not_count():
    found = figures(
        (1, finished("a")),
        (2, add(1, "a")),
        (3, c.Up("trainer", "0", 0)),
        (9, add(1, "a")),
        (11, finished("b"), step(1, "b")),
        (12, c.Stepped(1)),
    )
    assert found.leads_s == {1: 2.0}
    assert figures((1, finished("a"), step(1, "a")), (2, c.Stepped(1)), (3, c.Up("trainer", "0", 0))).leads_s == {}


def test_a_replica_stands_still_from_its_last_token_or_the_step_until_it_has_the_weights():
    served = [(0, c.Pulled("r0", 0)), (1, route("a"))]
    assert figures((0, c.Pulled("r0", 0))).generation_exposed_s == 0  # its first weights
    behind = figures(*served, (4, c.Stepped(1)), (5, finished("a"), pull(1)), (5.5, c.Pulled("r0", 1)))
    assert behind.generation_exposed_s == 0.5
    waited = figures(*served, (2, finished("a")), (4, c.Stepped(1)), (5, pull(1)), (5.5, c.Pulled("r0", 1)))
    assert waited.generation_exposed_s == 1.5  # until 4 it waited for training
    beside = figures(*served, (4, c.Stepped(1)), (5.5, c.Pulled("r0", 1)), (6, finished("a")))
    assert beside.generation_exposed_s == 0


def test_two_pulls_in_a_row_count_once_and_the_mean_is_over_replicas():
    found = figures(
        (0, c.Pulled("r0", 0), c.Pulled("r1", 0)),
        (1, c.Stepped(1), c.Stepped(2)),
        (2, c.Pulled("r0", 1)),
        (4, c.Pulled("r0", 2)),
    )
    assert found.generation_exposed_s == 1.5
    assert found.plain()["exposed_weight_s"] == 1.5


@pytest.mark.parametrize("end", [c.Interrupted("r0", "a", 2), c.Refused("r0", "a", "too long"), c.Abort(3, ("a",))])
def test_a_replica_is_drained_however_its_work_ends(end):
    found = figures(
        (0, c.Pulled("r0", 0)), (1, route("a")), (1, c.Stepped(1)), (3, end), (4, c.Pulled("r0", 1)), (9, c.Tick())
    )
    assert found.generation_exposed_s == 1


def test_a_replica_that_comes_up_again_waits_for_no_newer_weights():
    found = figures((0, c.Pulled("r0", 0)), (1, c.Stepped(1)), (2, c.Up("replica", "r0")), (9, c.Pulled("r0", 1)))
    assert found.generation_exposed_s == 0


def test_the_trainer_stands_still_while_it_publishes_and_has_work():
    publishing = [(1, c.Stepped(1)), (2, trainer("publishing"))]
    assert figures(*publishing, (5, trainer("idle")), (6, step(2, "a"))).training_exposed_s == 0
    assert figures(*publishing, (3, step(2, "a")), (5, trainer("training"))).training_exposed_s == 2
    assert figures((1, step(2, "a")), *publishing[1:], (5, trainer("saving"))).training_exposed_s == 3
    done = figures((1, step(2, "a")), (2, c.Stepped(2)), (3, trainer("publishing")), (5, trainer("idle")))
    assert done.training_exposed_s == 0
