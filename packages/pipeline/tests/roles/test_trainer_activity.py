"""What the trainer says of its work: phases as they change, micro-batches now and then."""

import pytest

from tailrace.contracts import Accumulate, Checkpoint, Publish, Step
from tailrace.faulttol.tensor_cores import UnreadableError
from tailrace.pipeline.roles.trainer_activity import NOISE, REPORT_S, TensorCoreWatch, TrainerActivity


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


def test_a_long_fetch_says_that_it_goes_on():
    told = Told()
    told.activity.begins(Step(1, 1, ()))
    for _ in range(9):
        told.later(REPORT_S / 2).fetched()
    assert told.said == [("training", 0, 0.0)] * 5


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


def test_tensor_cores_that_work_are_progress_of_a_backend_that_says_nothing():
    told = Told(watched=False)
    told.activity.begins(Step(1, 1, ()))
    told.later(REPORT_S).tensor_cores_worked()
    told.later(REPORT_S).tensor_cores_worked()
    assert told.said == [("stepping", 0, 0.0), ("training", 0, 0.0), ("training", 2, REPORT_S)]


def test_tensor_cores_that_never_worked_are_not_missed():
    told = Told(watched=False)
    told.activity.begins(Step(1, 1, ()))
    told.later(1_000.0)
    assert told.said == [("stepping", 0, 0.0)]


def test_what_tensor_cores_do_for_others_is_not_the_trainers():
    told = Told(watched=False)
    told.later(REPORT_S).tensor_cores_worked()
    told.activity.begins(Publish(1, 1))
    told.later(REPORT_S).tensor_cores_worked()
    told.activity.begins(Step(2, 2, ()))
    assert told.said == [("publishing", 0, 0.0), ("stepping", 0, 0.0)]


def test_tensor_cores_that_cannot_be_read_any_more_are_not_missed():
    told = Told(watched=False)
    told.activity.begins(Step(1, 1, ()))
    told.later(1.0).tensor_cores_worked()
    told.activity.tensor_cores_unreadable()
    told.activity.idle()
    told.activity.begins(Step(2, 2, ()))
    assert [phase for phase, _, _ in told.said] == ["stepping", "training", "stepping", "idle", "stepping"]


class Cores:
    def __init__(self, *readings):
        self.readings, self.closed = list(readings), 0

    def busy(self):
        if not self.readings:
            raise UnreadableError("no more")
        return self.readings.pop(0)

    def close(self):
        self.closed += 1


def test_a_watch_tells_when_they_work_and_when_they_cannot_be_read(caplog):
    told, cores = Told(watched=False), Cores(0.0, 0.3, NOISE / 2)
    told.activity.begins(Step(1, 1, ()))
    watch = TensorCoreWatch(cores, told.activity, every_s=0.01)
    watch._thread.join(20)
    assert [phase for phase, _, _ in told.said] == ["stepping", "training", "stepping"]
    assert cores.closed == 1
    assert "not watched any more: no more" in caplog.text
    watch.close()


def test_a_watch_that_is_closed_reads_no_more():
    told, cores = Told(watched=False), Cores(*[0.0] * 10_000)
    watch = TensorCoreWatch(cores, told.activity, every_s=0.01)
    watch.close()
    assert cores.closed == 1
    assert not watch._thread.is_alive()


def test_how_much_of_a_command_is_done_is_told_where_the_backend_says_how_much_it_has():
    now, events = [0.0], []
    activity = TrainerActivity("0", events.append, watched=True, clock=lambda: now[0], expected=lambda: 8)
    for number in (1, 2):
        activity.begins(Step(number, number, ()))
        for _ in range(4):
            now[0] += REPORT_S
            activity.ended_micro_batch()
    assert [one.share for one in events if one.share] == 2 * [0.125, 0.25, 0.375, 0.5]
    activity.begins(Publish(3, 2))
    assert events[-1].share == 0.0
