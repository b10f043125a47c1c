"""Checkpoints: the newest that can be used, whoever died and whatever became of the others."""

import pytest
from scripted import Scripted, of, policy, spec

from tailrace import contracts as c


def at_step(step, **changes):
    """A run whose trainer has made so many steps, and has the next before it."""
    run = Scripted(spec(steps=6, **changes))
    run.go(c.Tick(), leave=(c.Step,))
    while run.view.step < step:
        run.catch_up(leave=(c.Step,))
    run.forget(c.Step)
    return run


def trainer(commands):
    return [command.version for command in of(c.Restart, commands) if command.role == "trainer"]


def damaged(run, leave=("trainer",)):
    return run.down("trainer", "0", c.Cause.CHECKPOINT, "a shard's checksum does not match", leave=leave)


def finished(run):
    run.catch_up()
    run.go(c.Tick())
    assert run.view.finished, run.view.failure
    assert run.view.counts.trained == 12
    assert run.view.step == 6


def test_a_trainer_starts_from_the_newest():
    run = at_step(4)
    assert trainer(run.down("trainer", leave=("trainer",))) == [4]
    finished(run)


def test_a_damaged_one_is_passed_over_for_the_one_before():
    run = at_step(4)
    assert trainer(run.down("trainer", leave=("trainer",))) == [4]
    run.forget("trainer")
    assert trainer(damaged(run)) == [3]
    given = run.catch_up(leave=(c.Step,))
    assert run.view.step == 3
    assert run.view.version == 5  # the number that was published is not used again
    assert [command.version for command in of(c.Publish, given)] == [5]
    assert {name for step in of(c.Step, run.left) for part in step.mini_batches for name in part}
    finished(run)


def test_what_was_trained_on_after_it_is_trained_on_again():
    run = at_step(4)
    steps = {command.version: command.mini_batches for command in of(c.Step, run.given)}
    run.down("trainer", leave=("trainer",))
    run.forget("trainer")
    damaged(run, leave=(c.Step,))
    again = of(c.Step, run.left)[-1]
    assert again.mini_batches == steps[4]
    finished(run)


def test_with_no_other_the_run_ends_with_a_line_and_can_be_resumed_once_one_is_back():
    run = at_step(4)
    run.down("trainer", leave=("trainer",))
    run.forget("trainer")
    damaged(run)
    run.forget("trainer")
    damaged(run)
    assert run.view.failure == (
        "the checkpoint of version 3 cannot be used, and there is no other: a shard's checksum does not match"
    )
    run.go(c.Resumed((3,)))
    finished(run)


def test_the_first_model_is_there_for_ever_until_it_is_not_needed():
    run = at_step(0)
    assert trainer(run.down("trainer", leave=("trainer",))) == [None]
    run = at_step(1)
    run.down("trainer", leave=("trainer",))
    run.forget("trainer")
    assert trainer(damaged(run)) == [None]
    finished(run)


@pytest.mark.parametrize(
    ("exist", "goes_on_from"),
    [((1, 2, 3, 4), 4), ((3,), 3), ((1, 2, 3), 3), ((3, 4, 5, 9), 4)],
)
def test_a_run_goes_on_from_what_is_there(exist, goes_on_from):
    run = at_step(4)
    given = run.go(c.Resumed(exist), leave=(c.Step,))
    assert trainer(given) == [goes_on_from]
    assert [command.version for command in of(c.Restart, given) if command.role == "data"] == [goes_on_from]
    assert run.view.step == goes_on_from
    finished(run)


def test_one_that_became_durable_unheard_of_is_used():
    run = Scripted(spec(steps=6))
    run.go(c.Tick(), leave=(c.Step,))
    while run.view.step < 4:
        run.catch_up(c.Step, leave=(c.Step, c.Checkpoint))
    run.forget(c.Step, c.Checkpoint)
    assert run.view.durable == 0
    given = run.go(c.Resumed((0, 3)), leave=(c.Step,))
    assert trainer(given) == [3]
    finished(run)


def test_one_that_ends_after_the_store_was_told_to_return_to_an_older_one_is_not_used():
    """The trainer of a driver that died may still write. The store of the next has taken the batches back by then."""
    run = Scripted(spec(steps=6))
    run.go(c.Tick(), leave=(c.Step,))
    while run.view.step < 4:
        run.catch_up(c.Step, leave=(c.Step, c.Checkpoint))
    run.forget(c.Step, c.Checkpoint)
    run.go(c.Resumed((0,)), leave=("trainer", c.Step))
    run.forget("trainer")
    given = run.go(c.Resumed((0, 3)), leave=(c.Step,))
    assert trainer(given) == [None]
    assert [command.version for command in of(c.Restart, given) if command.role == "data"] == [0]
    finished(run)


@pytest.mark.parametrize("exist", [(), (1, 2), (9,)])
def test_with_none_that_fits_it_says_which_would(exist):
    run = at_step(4)
    run.left = []
    assert of(c.Restart, run.go(c.Resumed(exist))) == []
    found = sorted(exist) or "none"
    assert run.view.failure == (
        f"the run has no checkpoint to continue from: expected one of [3, 4], found {found}; start a new run"
    )
    for again in (exist, exist):
        run.go(c.Resumed(again))
        assert "expected one of [3, 4]" in run.view.failure
    run.go(c.Resumed((3,)))  # somebody has brought it back
    finished(run)


@pytest.mark.parametrize("keep", [1, 2, 3])
def test_so_many_are_kept_and_those_that_somebody_still_needs(keep):
    run = at_step(5, keep_checkpoints=keep)
    kept = {command.version: command.keep for command in of(c.Checkpoint, run.given)}
    assert all(set(range(max(1, version - keep + 1), version)) <= set(kept[version]) for version in kept)
    assert run.controller.trainer.fallbacks == list(range(6 - keep, 6))


def test_a_version_that_running_work_was_made_with_is_kept():
    run = Scripted(spec(steps=6, provisioning=policy("provisioning", "static", count=2), batch_groups=1))
    run.go(c.Tick(), leave=(c.Route,))
    held = run.left[0]
    run.left.remove(held)
    for _ in range(4):
        run.catch_up(c.Route, leave=(c.Route,))
    assert run.view.step >= 3
    assert all(0 in command.keep for command in of(c.Checkpoint, run.given))
    run.go(*run.answers(held))
    run.catch_up()
    assert 0 not in of(c.Checkpoint, run.given)[-1].keep


def test_full_state_comes_at_every_kth_step_and_at_the_last():
    run = Scripted(spec(steps=6, full_checkpoint_every=4))
    run.go(c.Tick())
    assert run.view.finished, run.view.failure
    saved = {command.version: command.full for command in of(c.Checkpoint, run.given) if command.version}
    assert saved == {1: False, 2: False, 3: False, 4: True, 5: False, 6: True}
    assert run.controller.trainer.fallbacks == [4, 6]


@pytest.mark.parametrize("step", range(1, 6))
def test_a_trainer_goes_on_from_full_state_alone_and_trains_again_on_what_came_after(step):
    run = at_step(step, full_checkpoint_every=3)
    before = [batch.mini_batches for batch in of(c.Step, run.given)]
    given, full = len(run.given), 3 if step >= 3 else 0
    assert trainer(run.down("trainer", leave=("trainer",))) == [full or None]
    run.catch_up(leave=(c.Step,))
    assert run.view.step == full
    finished(run)
    again = [batch.mini_batches for batch in of(c.Step, run.given[given:])]
    assert sorted(map(str, before[:full] + again)) == sorted(set(map(str, before + again)))  # each batch once


def test_weights_that_are_durable_first_do_not_cost_the_full_state_before_them():
    """The next checkpoint does not delete a full state whose copy on another machine is not there yet."""
    run = Scripted(spec(steps=6, full_checkpoint_every=2))
    run.go(c.Tick(), leave=(c.Step, c.Checkpoint))
    while run.view.step < 3:
        run.catch_up(c.Step, leave=(c.Step, c.Checkpoint))
    saves = {command.version: command for command in of(c.Checkpoint, run.left)}
    assert [saves[version].full for version in (1, 2, 3)] == [False, True, False]
    run.go(c.Durable(3, saves[3].seq, full=False), leave=(c.Step, c.Checkpoint))
    given = run.catch_up(c.Step, leave=(c.Step, c.Checkpoint))
    assert [2 in command.keep for command in of(c.Checkpoint, given)] == [True]
