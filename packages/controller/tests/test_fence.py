"""The fence: a version is handed over sealed, and may be pulled once its checkpoint is durable."""

import pytest
from scripted import Scripted, of, spec

from tailrace import contracts as c
from tailrace.controller.errors import PolicyError


def begun(*leave, **changes):
    """A run whose trainer has made version 1, with what followed; some of it nobody answers yet."""
    run = Scripted(spec(steps=6, **{"fence": True} | changes))
    run.go(c.Tick(), leave=(c.Step,))
    return run, run.catch_up(c.Step, leave=(c.Step, *leave))


def sealed(commands):
    return [(command.version, command.sealed) for command in of(c.Publish, commands)]


def revealed(commands):
    return [command.version for command in of(c.Reveal, commands)]


def pulled(commands):
    return {command.version for command in of(c.Pull, commands)}


def finished(run):
    run.catch_up()
    run.go(c.Tick())
    assert run.view.finished, run.view.failure
    assert run.view.counts.trained == 12


def test_what_the_run_began_with_is_never_sealed_and_every_other_version_is_seen_after_its_checkpoint():
    run, _ = begun()
    finished(run)
    assert sealed(run.given) == [(0, False), *((version, True) for version in range(1, 7))]
    durable = set()
    for _, events, _ in run.calls:
        durable |= {event.version for event in of(c.Durable, events)}
        assert {event.version for event in of(c.Published, events)} <= durable | {0}
    assert revealed(run.given) == [1, 2, 3, 4, 5, 6]  # the last one as the run ends
    assert run.view.published_before_durable == 0


def test_nothing_is_pulled_before_the_checkpoint_is_durable():
    run, given = begun(c.Checkpoint)
    assert sealed(given) == [(1, True)]
    assert (revealed(given), pulled(given), run.view.published) == ([], set(), 0)
    given = run.catch_up(c.Checkpoint, leave=(c.Step,))
    assert revealed(given) == [1]
    assert pulled(given) == {1}
    finished(run)


def test_a_relay_that_comes_up_gets_it_sealed_before_and_open_after():
    run, _ = begun(c.Checkpoint)
    assert sealed(run.down("relay", leave=(c.Step,))) == [(1, True)]
    run.catch_up(c.Checkpoint, leave=(c.Step,))
    assert run.view.published == 1
    assert sealed(run.down("relay", leave=(c.Step,))) == [(1, False)]
    finished(run)


def test_a_sealed_version_that_died_with_the_trainer_is_made_again_of_the_same_groups():
    run, given = begun(c.Checkpoint)
    (step,) = of(c.Step, run.given)[:1]
    run.forget(c.Checkpoint, c.Step)
    given = run.down("trainer", leave=(c.Step, c.Checkpoint))
    assert [command.version for command in of(c.Restart, given)] == [None]  # version 0 is the model as given
    assert sealed(given) == [(0, False)]
    assert [(again.version, again.mini_batches) for again in of(c.Step, given)] == [(1, step.mini_batches)]
    given = run.catch_up(c.Step, leave=(c.Step, c.Checkpoint))
    assert (sealed(given), revealed(given)) == ([(1, True)], [])
    assert revealed(run.catch_up(c.Checkpoint, leave=(c.Step,))) == [1]
    finished(run)
    assert run.view.counts.filtered == 0
    assert run.view.published_before_durable == 0


def test_a_version_that_was_seen_and_whose_checkpoint_is_damaged_keeps_its_number():
    run, _ = begun()
    run.forget(c.Step)
    given = run.go(c.Resumed((0,)), leave=(c.Step,))
    assert sealed(given)[0] == (2, True)
    finished(run)


def test_a_checkpoint_that_nobody_heard_of_before_the_driver_died_is_seen_when_the_run_goes_on():
    run, _ = begun(c.Checkpoint)
    run.forget(c.Checkpoint, c.Step)
    given = run.go(c.Resumed((0, 1)), leave=(c.Step,))
    assert sealed(given)[0] == (1, False)
    finished(run)


def test_without_a_fence_it_is_counted_what_went_before():
    run, given = begun(c.Checkpoint, fence=False)
    assert sealed(given) == [(1, False)]
    assert run.view.published == 1
    run.catch_up(c.Checkpoint, leave=(c.Step,))
    assert revealed(run.given) == []
    assert run.view.published_before_durable == 1
    run.down("relay", leave=(c.Step,))
    assert run.view.published_before_durable == 1
    finished(run)


def test_a_fence_needs_a_checkpoint_at_every_step():
    with pytest.raises(PolicyError, match="found a fence with full state every 3 steps, expected it at each"):
        spec(fence=True, checkpoint_every=3)
