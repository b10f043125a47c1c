"""Training on parts: those of a batch are trained on before it is complete; a trainer that dies has forgotten them."""

import pytest
from scripted import Scripted, of, policy, spec

from tailrace import contracts as c
from tailrace.pipeline.controller.states import GroupPhase
from tailrace.pipeline.errors import ControllerError, PolicyError
from tailrace.pipeline.policies.training import DynamicBatch, MiniBatch


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


def at_the_first_part():
    """A run whose trainer works on the first part of its first batch, and of it only that is complete."""
    run = in_parts()
    run.go(c.Tick(), leave=(c.Route,))
    given = run.go(c.Finished("r0", "0.0", 3), c.Finished("r0", "0.1", 3), leave=(c.Accumulate,))
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
    assert run.controller.coordinator.progress().consumed == 1


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
    with pytest.raises(PolicyError, match="parts=0"):
        DynamicBatch(0)
