"""Gradients of complete groups are added before their batch is complete, by cells beside each other, each group once."""

import random
import sys

import pytest
from scripted import Scripted, of, policy, spec

from tailrace import contracts as c
from tailrace.controller.errors import ControllerError, PluginAnswerError, PolicyError
from tailrace.controller.policies.training import Streamed
from tailrace.controller.trajectories import GroupPhase

BATCH = 5


def streamed(groups=2, cells=1, **changes):
    changes = {
        "admission": policy("admission", "one-step"),
        "training": policy("training", "streamed", groups=groups),
        "buffer_groups": 20,
        "replica_batch": 20,
        **changes,
    }
    return Scripted(
        spec(
            sync=policy("sync", "barrier"),
            batch_groups=BATCH,
            cells=cells,
            **changes,
        )
    )


def complete(run, *groups, leave=(c.Accumulate, c.Step)):
    """Complete these groups; returns the commands."""
    done = [run.finishes(f"{group}.{sample}") for group in groups for sample in range(2)]
    return run.go(*done, leave=leave)


def parts(commands):
    """The groups of each command to add gradients, with its cell."""
    return [(command.cell, groups_of(command.trajectories)) for command in of(c.Accumulate, commands)]


def groups_of(names):
    return sorted({int(name.partition(".")[0]) for name in names})


def begun(groups=2, cells=1, **changes):
    """A run that generates its first batches, of which nothing is complete."""
    run = streamed(groups, cells, **changes)
    run.go(c.Tick(), leave=(c.Route,))
    return run


def test_a_trainer_that_is_given_one_part_after_the_other_does_not_stand_still():
    """Each part is shorter than the window of detection, all of them are longer, and nobody ever sees it idle."""
    run = begun(groups=1)
    run.go(*(run.finishes(f"{group}.{sample}") for group in range(4) for sample in range(2)), leave=(c.Accumulate,))
    for _ in range(4):
        for _ in range(50):
            run.later(5.0, leave=(c.Accumulate,))
            assert not of(c.Restart, run.given)
        run.catch_up(c.Accumulate, leave=(c.Accumulate,))
    assert len(of(c.Accumulate, run.given)) == 4


@pytest.mark.parametrize(("groups", "cells"), [(1, 1), (4, 1), (9, 1), (1, 2), (2, 2), (4, 3)])
def test_each_group_of_a_batch_is_given_once_and_whole(groups, cells):
    run = streamed(groups, cells)
    run.go(c.Tick())
    assert run.view.finished
    given = {}
    for command in of((c.Accumulate, c.Step), run.given):
        names = command.trajectories if isinstance(command, c.Accumulate) else sum(command.mini_batches, ())
        if isinstance(command, c.Accumulate):
            assert not command.update
            assert 0 <= command.cell < cells
            assert len(groups_of(names)) <= groups
        else:
            assert len(command.mini_batches) <= 1
        given.setdefault(command.version, []).extend(names)
    assert sorted(given) == [1, 2, 3]
    for names in given.values():
        assert len(names) == len(set(names)) == 2 * BATCH
        assert len(groups_of(names)) == BATCH


def test_cells_add_gradients_while_the_batch_is_generated():
    run = begun(cells=2)
    assert parts(complete(run, 1)) == [(0, [1])]
    assert run.view.generating > 0
    assert run.view.making == 1
    assert parts(complete(run, 3)) == [(1, [3])]  # beside the first cell
    assert parts(complete(run, 2, 4)) == []  # both are at work
    assert parts(run.catch_up(c.Accumulate, leave=(c.Accumulate, c.Step))) == [(0, [2]), (1, [4])]
    assert not of(c.Step, run.given)
    assert run.controller.owned.progress().consumed == 4


def test_the_step_waits_for_every_cell_and_takes_the_rest():
    run = begun(groups=1, cells=2)
    complete(run, 0)
    complete(run, 1)
    commands = complete(run, 2, 3, 4)
    assert not of((c.Accumulate, c.Step), commands)  # complete, but both cells are at work
    first, second = [command for command in run.left if isinstance(command, c.Accumulate)]
    commands = run.go(*run.answers(second), leave=(c.Accumulate, c.Step))
    assert parts(commands) == [(1, [2])]  # it need not wait for the other
    run.left.remove(second)
    commands = run.go(*run.answers(first), *run.answers(of(c.Accumulate, commands)[0]), leave=(c.Step,))
    (step,) = of(c.Step, commands)
    assert [groups_of(part) for part in step.mini_batches] == [[3, 4]]


def test_a_step_may_have_nothing_left():
    run = begun(groups=9, cells=2)
    complete(run, 0)
    assert parts(complete(run, 1, 2, 3, 4)) == [(1, [1, 2, 3, 4])]
    (step,) = of(c.Step, run.catch_up(c.Accumulate, leave=(c.Step,)))
    assert (step.version, step.mini_batches) == (1, ())
    run.catch_up()
    run.go(c.Tick())
    assert run.view.finished


def test_a_batch_that_is_complete_while_no_cell_is_at_work_is_left_to_all_of_them():
    run = begun(groups=9)
    complete(run, 0, 1, 2, 3)
    run.catch_up(c.Accumulate, leave=(c.Accumulate, c.Step))
    (step,) = of(c.Step, complete(run, 4))
    assert [groups_of(part) for part in step.mini_batches] == [[4]]


def test_only_free_cells_are_given_groups():
    run = begun(cells=2)
    run.controller.batches.free_cells = set()
    assert parts(complete(run, 0)) == []
    run.controller.batches.free_cells = {1}
    assert parts(run.go(c.Tick(), leave=(c.Accumulate,))) == [(1, [0])]


def test_a_single_fetch_takes_what_is_complete_when_cells_become_free_up_to_its_share():
    run = begun(cells=2, training=policy("training", "single-fetch", share=0.6))  # 3 of 5 groups
    run.controller.batches.free_cells = set()
    complete(run, 0, 1, 2, 3)
    run.controller.batches.free_cells = {0, 1}
    assert parts(run.go(c.Tick(), leave=(c.Accumulate, c.Step))) == [(0, [0, 1]), (1, [2])]
    assert parts(run.catch_up(c.Accumulate, leave=(c.Accumulate, c.Step))) == []  # group 3 waits for the batch
    (step,) = of(c.Step, complete(run, 4))
    assert [groups_of(part) for part in step.mini_batches] == [[3, 4]]


def test_a_single_fetch_is_not_a_group_less_by_rounding(monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "BATCH", 50)
    fetch = policy("training", "single-fetch", share=0.58)  # 0.58 * 50 is below 29 in floating point
    run = begun(training=fetch, buffer_groups=200, replica_batch=200)
    run.controller.batches.free_cells = set()
    complete(run, *range(40))
    run.controller.batches.free_cells = {0}
    assert [len(groups) for _, groups in parts(run.go(c.Tick(), leave=(c.Accumulate, c.Step)))] == [29]


def test_a_single_fetch_of_less_than_a_group_is_none():
    run = begun(training=policy("training", "single-fetch", share=0.1))
    assert parts(complete(run, 0)) == []
    run.catch_up()
    run.go(c.Tick())
    assert run.view.finished


def test_what_a_trainer_forgot_is_given_again():
    run = begun(groups=1, cells=2)
    complete(run, 0)
    complete(run, 1)
    run.catch_up(c.Accumulate, leave=(c.Accumulate,))
    complete(run, 2)
    assert run.controller.ledger.groups[0].phase is GroupPhase.TRAINING
    run.forget(c.Accumulate)
    again = run.down("trainer", leave=(c.Accumulate,))
    assert parts(again) == [(0, [0]), (1, [1])]
    assert run.controller.trainer.accumulated == [0, 1]
    assert run.view.staleness_at_consumption == {}
    run.catch_up()
    run.go(c.Tick())
    assert run.view.finished
    assert run.view.counts.trained_trajectories == 30


def test_answers_of_other_cells_are_refused():
    run = begun(cells=2)
    complete(run, 0)
    with pytest.raises(ControllerError, match=r"found Accumulated\(1\) while its cell 1 works on None"):
        run.handle(c.Accumulated(1, (), cell=1))
    with pytest.raises(ControllerError, match="while the trainer works on None"):
        run.handle(c.Accumulated(1, ()))


def test_a_part_over_the_bound_ends_the_run():
    run = begun()
    complete(run, 0)
    (command,) = [command for command in run.left if isinstance(command, c.Accumulate)]
    run.handle(c.Accumulated(1, command.trajectories, {"staleness_max": 2.0}, command.seq, cell=0))
    assert "above the bound of 1" in run.view.failure


def _fetch(draw):
    share = draw.choice([None, None, 0.4, 1.0])
    return {} if share is None else {"training": policy("training", "single-fetch", share=share)}


@pytest.mark.parametrize("seed", range(8))
def test_in_whatever_order_everything_comes(seed):
    """Groups complete, cells answer and the trainer dies in random order: every version has its five groups, once."""
    draw = random.Random(seed)
    admission = draw.choice(["one-step", "on-policy", "inherent"])
    run = streamed(draw.randint(1, 3), draw.randint(1, 3), admission=policy("admission", admission), **_fetch(draw))
    waits = (c.Route, c.Accumulate, c.Step)
    run.go(c.Tick(), leave=waits)
    for _ in range(400):
        if run.view.finished:
            break
        if draw.random() < 0.05:
            run.forget(c.Accumulate, c.Step)
            run.down("trainer", leave=waits)
        elif run.left:
            command = draw.choice(run.left)
            run.left.remove(command)
            run.go(*run.answers(command), leave=waits)
        else:
            run.later(1.0, leave=waits)
    assert run.view.finished, f"seed {seed}"
    assert run.view.counts.trained_trajectories == 30
    batches = {}
    for _, events, commands in run.calls:
        for event in events:
            if isinstance(event, c.Up) and event.role == "trainer":
                batches = {version: names for version, names in batches.items() if version <= (event.version or 0)}
        for command in of((c.Accumulate, c.Step), commands):
            names = command.trajectories if isinstance(command, c.Accumulate) else sum(command.mini_batches, ())
            batches.setdefault(command.version, []).extend(names)
    whole = [names for names in batches.values() if names]
    trained = [name for names in whole for name in names]
    assert len(trained) == len(set(trained)) == 30, f"seed {seed}"


def test_the_policy():
    assert Streamed(3).streams
    assert Streamed(3).early_gradients() == c.EarlyGradients(3)
    assert Streamed().split(range(5)) == [range(5)]
    assert policy("training", "full-batch").early_gradients() is None
    with pytest.raises(PolicyError, match="groups=0"):
        Streamed(0)


@pytest.mark.parametrize("answer", [7, c.EarlyGradients(0), c.EarlyGradients(2, tokens=0), (1, None)])
def test_early_gradients_of_no_group_are_refused(answer):
    class Wrong(Streamed):
        def early_gradients(self):
            return answer

    with pytest.raises(PluginAnswerError, match=r"early_gradients answered .*expected at least 1 group"):
        Scripted(spec(training=Wrong()))
