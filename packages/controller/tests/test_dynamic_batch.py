"""Training before a batch is complete: on parts, each an optimizer step, or on what fills the trainer, with one step.

A trainer that dies has forgotten both.
"""

import pytest
from scripted import Scripted, of, policy, spec

from tailrace import contracts as c
from tailrace.controller.errors import ControllerError, PolicyError
from tailrace.controller.policies.training import DynamicBatch, MiniBatch
from tailrace.controller.trajectories import GroupPhase


def in_parts(parts=3, **changes):
    return Scripted(
        spec(
            admission=policy("admission", "one-step"),
            sync=policy("sync", "barrier"),
            training=policy("training", "dynamic-batch", parts=parts),
            batch_groups=5,
            buffer_groups=20,
            replica_batch=20,
            **changes,
        )
    )


def filled(tokens, **changes):
    """A run whose trainer adds gradients once so many response tokens are complete. Each group has two of 3 tokens."""
    run = Scripted(
        spec(
            admission=policy("admission", "one-step"),
            sync=policy("sync", "barrier"),
            training=policy("training", "dynamic-batch", tokens=tokens),
            batch_groups=5,
            buffer_groups=20,
            replica_batch=20,
            **changes,
        )
    )
    run.go(c.Tick(), leave=(c.Route,))
    return run


def complete(run, *groups):
    """Complete these groups; returns what the trainer is given."""
    done = [run.finishes(f"{group}.{sample}") for group in groups for sample in range(2)]
    return of((c.Accumulate, c.Step), run.go(*done, leave=(c.Accumulate, c.Step)))


def at_the_first_part():
    """A run whose trainer works on the first part of its first batch, and of it only that is complete."""
    run = in_parts()
    run.go(c.Tick(), leave=(c.Route,))
    given = run.go(run.finishes("0.0"), run.finishes("0.1"), leave=(c.Accumulate,))
    assert [command.trajectories for command in of(c.Accumulate, given)] == [("0.0", "0.1")]
    return run


@pytest.mark.parametrize("parts", range(1, 7))
def test_the_parts_of_a_batch_go_one_after_the_other(parts):
    run = in_parts(parts)
    run.go(c.Tick())
    assert run.view.finished
    sizes = [2 * len(part) for part in MiniBatch(parts).split(range(5))]
    found = [
        len(command.trajectories if isinstance(command, c.Accumulate) else command.mini_batches[0])
        for command in of((c.Accumulate, c.Step), run.given)
    ]
    assert found == sizes * 3
    assert all(len(command.mini_batches) == 1 for command in of(c.Step, run.given))


def test_the_trainer_starts_before_the_batch_is_complete():
    run = at_the_first_part()
    assert run.view.generating > 0
    assert run.view.making == 1
    assert run.controller.owned.progress().consumed == 1


def test_what_a_trainer_forgot_is_complete_and_goes_again():
    run = at_the_first_part()
    assert run.controller.ledger.groups[0].phase is GroupPhase.TRAINING
    run.forget(c.Accumulate)
    again = run.down("trainer", leave=(c.Accumulate,))
    assert [command.trajectories for command in of(c.Accumulate, again)] == [("0.0", "0.1")]
    assert run.controller.trainer.accumulated == [0]
    assert {version: sum(lags.values()) for version, lags in run.controller.trainer.consumed_staleness.items()} == {
        1: 2
    }
    assert run.view.staleness_at_consumption == {}  # the batch is not trained on yet
    run.catch_up()
    run.go(c.Tick())
    assert run.view.finished
    assert run.view.counts.trained_trajectories == 30


def test_an_answer_to_another_part_is_refused():
    run = at_the_first_part()
    with pytest.raises(ControllerError, match=r"found Accumulated\(7\) while the trainer works on 1"):
        run.handle(c.Accumulated(7, ()))
    run.handle(c.Accumulated(1, ()))
    with pytest.raises(ControllerError, match="works on None"):
        run.handle(c.Accumulated(1, ()))


def test_a_part_over_the_bound_ends_the_run():
    run = at_the_first_part()
    commands = run.handle(c.Accumulated(1, (), {"staleness_max": 2.0}))
    assert [type(command) for command in commands] == [c.Fail]
    assert "above the bound of 1" in run.view.failure


def test_the_parts_are_those_of_mini_batches():
    assert [list(part) for part in DynamicBatch(3).split(range(5))] == [
        list(part) for part in MiniBatch(3).split(range(5))
    ]
    assert DynamicBatch(3).streams
    assert not MiniBatch(3).streams
    assert DynamicBatch(3).early_gradients() is None
    with pytest.raises(PolicyError, match="parts=0"):
        DynamicBatch(0)


def test_mini_batches_of_a_complete_batch_are_not_sorted_by_length():
    assert MiniBatch(2).split([5, 0, 3, 1]) == [[0, 1], [3, 5]]


def test_one_part_is_the_default_and_only_adds_gradients():
    assert [list(part) for part in DynamicBatch().split(range(5))] == [list(range(5))]
    assert DynamicBatch().early_gradients() is not None
    with pytest.raises(PolicyError, match="tokens=0"):
        DynamicBatch(tokens=0)


def test_groups_wait_until_they_fill_the_trainer_and_the_rest_goes_with_the_step():
    run = filled(tokens=11)
    assert complete(run, 1) == []  # 6 tokens
    (first,) = complete(run, 0)  # 12
    assert (first.update, first.trajectories) == (False, ("1.0", "1.1", "0.0", "0.1"))
    run.catch_up(c.Accumulate, leave=(c.Accumulate, c.Step))
    assert complete(run, 3) == []
    (step,) = complete(run, 2, 4)  # the batch is complete: what is left is not kept waiting, however little it is
    assert step.mini_batches == (("3.0", "3.1", "2.0", "2.1", "4.0", "4.1"),)


def test_what_is_complete_when_the_trainer_becomes_free_goes_at_once_whatever_its_number():
    run = filled(tokens=6)
    assert len(complete(run, 0)) == 1
    assert complete(run, 1, 2, 3) == []  # the trainer is at work
    (rest,) = of((c.Accumulate, c.Step), run.catch_up(c.Accumulate, leave=(c.Accumulate, c.Step)))
    assert len(rest.trajectories) == 6


def test_cells_share_what_is_complete_if_there_is_enough_for_each():
    run = filled(tokens=12, cells=3)
    given = complete(run, 0, 1, 2, 3)  # 24 tokens: two cells
    assert [(command.cell, len(command.trajectories)) for command in given] == [(0, 4), (1, 4)]


@pytest.mark.parametrize("tokens", [1, 7, 13, 10_000])
@pytest.mark.parametrize("cells", [1, 2])
def test_whatever_fills_the_trainer_each_batch_is_trained_on_once(tokens, cells):
    run = filled(tokens, cells=cells)
    run.catch_up()
    run.go(c.Tick())
    assert run.view.finished
    batches = {}
    for command in of((c.Accumulate, c.Step), run.given):
        names = command.trajectories if isinstance(command, c.Accumulate) else sum(command.mini_batches, ())
        batches.setdefault(command.version, []).extend(names)
    assert [len(names) for names in batches.values()] == [10, 10, 10]
    assert len({name for names in batches.values() for name in names}) == 30


def test_no_batch_is_launched_in_the_place_of_what_was_trained_on_early():
    run = filled(tokens=1)
    complete(run, 0)
    run.catch_up(c.Accumulate, leave=(c.Accumulate, c.Step))
    assert run.controller.trainer.accumulated == [0]
    assert run.view.counts.admitted == 10  # two batches: the one that is trained on, and the next
