"""Newer weights: a trainer whose checkpoint is older than what is published takes the weights from who has them."""

import random

import pytest
from scripted import Scripted, of, policy, spec

from tailrace import contracts as c
from tailrace.controller.controller import Controller
from tailrace.controller.errors import PolicyError


def at_step(step, **changes):
    """A run with full state at every third step only, whose trainer has made so many steps and has the next before it."""
    fields = {"steps": 6, "full_checkpoint_every": 3, "newer_weights": True, **changes}
    run = Scripted(spec(**fields))
    run.go(c.Tick(), leave=(c.Step,))
    while run.view.step < step:
        run.catch_up(leave=(c.Step,))
    run.forget(c.Step)
    return run


def restart(commands):
    (found,) = [command for command in of(c.Restart, commands) if command.role == "trainer"]
    return found


def names(step):
    return [name for batch in step.mini_batches for name in batch]


def finished_once(run):
    """Every trajectory that counts was trained on in one batch that was not undone."""
    run.catch_up()
    run.go(c.Tick())
    assert run.view.finished, run.view.failure
    assert (run.view.counts.trained, run.view.step) == (12, 6)
    batches = {step.version: names(step) for step in of(c.Step, run.given)}
    made, wanted = {}, {}
    for _, events, commands in run.calls:
        for event in events:
            if isinstance(event, c.Stepped):
                made[event.version] = batches[event.version]
            elif isinstance(event, c.Up) and event.role == "trainer" and event.answers in wanted:
                made = {version: batch for version, batch in made.items() if version <= (event.version or 0)}
        wanted |= {one.seq: one for one in of(c.Restart, commands)}
    trained = [name for batch in made.values() for name in batch]
    assert len(trained) == len(set(trained)) == 24
    again = Controller(run.controller.spec)
    for now, events, commands in run.calls:
        assert again.handle_all(events, now) == commands
    assert again.state() == run.controller.state()


def test_it_goes_on_from_the_published_weights_and_trains_on_nothing_twice():
    run = at_step(5)
    steps = of(c.Step, run.given)
    command = restart(run.down("trainer", leave=("trainer",)))
    assert (command.version, command.weights) == (3, c.HeldWeights(5, 2, ("relay-0",)))
    given = run.catch_up(leave=(c.Step,))
    assert (run.view.step, run.view.version) == (5, 5)
    (saved,) = of(c.Checkpoint, given)
    assert (saved.version, saved.full) == (5, True)  # at once, since nobody else could come back to it
    assert names(of(c.Step, given)[0]) == names(steps[-1])  # what it was given when it died
    assert run.view.staleness_at_consumption
    finished_once(run)
    assert len(of(c.Step, run.given)) == 7


def test_without_the_setting_it_repeats_the_steps_since_its_checkpoint():
    run = at_step(5, newer_weights=False)
    command = restart(run.down("trainer"))
    assert (command.version, command.weights) == (3, None)
    finished_once(run)
    assert len(of(c.Step, run.given)) == 9


@pytest.mark.parametrize("step", [1, 2])
def test_before_the_second_checkpoint_it_takes_them_beside_the_state_of_the_first(step):
    run = at_step(step)
    command = restart(run.down("trainer"))
    assert (command.version, command.weights) == (0, c.HeldWeights(step, step, ("relay-0",)))
    finished_once(run)


@pytest.mark.parametrize("step", [0, 3])
def test_it_takes_none_that_are_not_newer(step):
    run = at_step(step)
    assert restart(run.down("trainer")).weights is None
    finished_once(run)


def test_a_version_that_nobody_could_pull_yet_is_made_again():
    run = at_step(4)
    run.go(*[c.Stepped(5, answers=of(c.Step, run.given)[-1].seq)], leave=(c.Publish, c.Step))
    run.forget(c.Publish)
    command = restart(run.down("trainer", leave=(c.Step,)))
    assert command.weights == c.HeldWeights(4, 1, ("relay-0",))
    assert (run.view.step, run.view.version) == (4, 6)  # the number 5 was handed over, and is not used again
    assert run.controller.trainer.batches[6] == 4
    run.forget(c.Step)
    second = restart(run.down("trainer", leave=(c.Step,)))
    assert (second.version, second.weights) == (6, None)  # saved as it came up
    finished_once(run)


def test_if_it_dies_before_that_is_saved_it_takes_them_again():
    run = at_step(5)
    run.down("trainer", leave=(c.Checkpoint, c.Step))
    run.forget(c.Checkpoint, c.Step)
    assert restart(run.down("trainer")).weights == c.HeldWeights(5, 2, ("relay-0",))
    finished_once(run)


def test_where_nobody_has_them_it_starts_from_its_checkpoint_which_counts_as_no_failure():
    run = at_step(5)
    run.down("trainer", leave=("trainer",))
    run.forget("trainer")
    gone = "the weights of version 5 could not be taken"
    command = restart(run.down("trainer", "0", c.Cause.CHECKPOINT, gone, leave=("trainer",)))
    assert (command.version, command.weights, command.reason.why) == (3, None, c.Why.NOT_TAKEN)
    given = run.catch_up(leave=(c.Step,))
    assert (run.view.step, run.view.version) == (3, 6)
    assert run.view.restarts("trainer") == 2
    assert of(c.Publish, given)[-1].version == 6
    finished_once(run)


def test_a_damaged_checkpoint_is_passed_over_after_that():
    run = at_step(5)
    found = [restart(run.down("trainer", leave=("trainer",)))]
    for _ in range(2):
        run.forget("trainer")
        found.append(restart(run.down("trainer", "0", c.Cause.CHECKPOINT, "a shard is damaged", leave=("trainer",))))
    assert [(one.version, one.weights is None) for one in found] == [(3, False), (3, True), (None, True)]
    finished_once(run)


def test_replicas_that_offer_them_come_before_relays_and_only_those_that_live():
    run = at_step(5, peers=True, provisioning=policy("provisioning", "static", count=3), sync=policy("sync", "barrier"))
    run.down("relay", "0", leave=("relay",))
    run.down("replica", "r1", leave=("replica",))
    owned = run.controller.owned
    offering = [replica.member.address for replica in owned.fleet.replicas.values() if replica.offered == 5]
    assert offering
    assert restart(run.down("trainer")).weights == c.HeldWeights(5, 2, tuple(offering))
    finished_once(run)


def test_where_nobody_is_left_to_ask_it_takes_none():
    run = at_step(5)
    run.down("relay", "0", leave=("relay",))
    assert restart(run.down("trainer")).weights is None
    finished_once(run)


def test_a_run_that_is_resumed_takes_none():
    run = at_step(5)
    given = run.go(c.Resumed((0, 3)))
    assert restart(given).weights is None
    finished_once(run)


@pytest.mark.parametrize("seed", range(40))
def test_trainers_and_holders_that_die_at_any_time_train_on_everything_once(seed):
    draw = random.Random(seed)
    run = Scripted(spec(steps=6, full_checkpoint_every=3, newer_weights=True, peers=draw.random() < 0.5))
    run.go(c.Tick(), leave=(c.Step,))
    for _ in range(12):
        if draw.random() < 0.6:
            run.catch_up(leave=(c.Step,))
            continue
        run.forget(c.Step)
        for role, member in draw.sample([("relay", "0"), ("replica", "r0")], draw.choice([0, 1])):
            run.down(role, member, leave=(c.Step,))
        leave = draw.choice([(c.Step,), (c.Step, c.Checkpoint), (c.Step, c.Publish), (c.Step, "trainer")])
        run.down("trainer", leave=leave)
        if "trainer" in leave and draw.random() < 0.5:
            run.forget("trainer")
            run.down("trainer", "0", c.Cause.CHECKPOINT, "it cannot be loaded", leave=(c.Step,))
        else:
            run.catch_up("trainer", leave=(c.Step,))
        if run.view.failure:
            return  # no checkpoint was left
    finished_once(run)


@pytest.mark.parametrize("other", ["fence", "deterministic"])
def test_it_is_refused_where_it_would_do_nothing_or_break_a_promise(other):
    with pytest.raises(PolicyError, match=f"found newer_weights with {other}, expected one of the two"):
        spec(newer_weights=True, **{other: True})
