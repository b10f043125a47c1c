"""What the trainer says of its work: phases as they change, micro-batches now and then."""

import pytest

from tailrace.contracts import Accumulate, Checkpoint, Publish, Step
from tailrace.pipeline.roles.trainer_activity import REPORT_S, TrainerActivity


class Told:
    def __init__(self, *, watched=True):
        self.now, self.events = 0.0, []
        self.activity = TrainerActivity("0", self.events.append, watched=watched, clock=lambda: self.now)

    def later(self, seconds):
        self.now += seconds
        return self.activity

    @property
    def said(self):
        found = [(one.phase, one.progress, one.slowest_s) for one in self.events]
        self.events.clear()
        return found


def test_a_short_step_is_told_by_its_phases_alone():
    told = Told()
    told.activity.begins(Step(1, 1, ()))
    for _ in range(3):
        told.later(REPORT_S / 4).ended_micro_batch()
    told.activity.ended(Step(1, 1, ()))
    told.activity.idle()
    assert told.said == [("training", 0, 0.0), ("idle", 3, 0.0)]


def test_a_long_step_says_now_and_then_which_micro_batches_are_done_and_how_slow_they_were():
    told = Told()
    told.activity.begins(Step(1, 1, ()))
    for seconds in (2.0, 2.0, 2.0, 3.0, 1.0, 1.0):
        told.later(seconds).ended_micro_batch()
    assert told.said == [("training", 0, 0.0), ("training", 3, 2.0), ("training", 6, 3.0)]
    told.later(100.0)  # the optimizer is no micro-batch
    told.activity.ended(Step(1, 1, ()))
    told.activity.idle()
    told.activity.begins(Accumulate(2, 2, ("0.0",)))
    assert told.said == [("idle", 6, 0.0), ("training", 6, 3.0)]


def test_nothing_is_told_of_a_step_that_stands_still():
    told = Told()
    told.activity.begins(Step(1, 1, ()))
    told.later(1_000.0)
    assert told.said == [("training", 0, 0.0)]


@pytest.mark.parametrize(("command", "phase"), [(Publish(1, 1), "publishing"), (Checkpoint(1, 1), "saving")])
def test_other_commands_count_as_a_whole(command, phase):
    told = Told()
    for slowest_s in (0.0, 7.0):
        told.activity.begins(command)
        assert told.said[-1] == (phase, 0, slowest_s)
        told.later(7.0).ended(command)
        told.activity.idle()


def test_a_backend_that_does_not_say_its_micro_batches_is_stepping():
    told = Told(watched=False)
    told.activity.begins(Step(1, 1, ()))
    assert told.said == [("stepping", 0, 0.0)]
