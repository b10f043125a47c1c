import threading

import pytest

from tailrace.contracts import Discarded, Score
from tailrace.runtime.role_worker import RoleWorker


def test_commands_in_order_and_events_at_once(gather):
    go, worker = threading.Event(), None

    def carry_out(command):
        go.wait(20)
        worker.put(Discarded(command.seq))

    worker = RoleWorker("test", carry_out)
    for start in range(1, 10, 3):
        worker.submit([Score(start + i, ()) for i in range(3)])
    assert worker.waiting
    assert worker.events(0.0) == []
    go.set()
    assert gather(worker, lambda events: len(events) == 9, "all") == [Discarded(seq) for seq in range(1, 10)]
    assert not worker.waiting
    assert worker.close(5.0)
    worker.submit([Score(11, ())])
    assert worker.events(0.05) == []


def test_newest_first(gather):
    held, go = threading.Event(), threading.Event()

    def carry_out(command):
        held.set()
        go.wait(20)
        worker.put(Discarded(command.seq))

    worker = RoleWorker("test", carry_out, newest_first=True)
    worker.submit([Score(1, ())])
    assert held.wait(20)
    worker.submit([Score(seq, ()) for seq in (2, 3, 4)])
    go.set()
    assert gather(worker, lambda events: len(events) == 4, "all") == [Discarded(seq) for seq in (1, 4, 3, 2)]
    assert worker.close(5.0)


def test_what_waits_can_be_taken_out_and_what_is_carried_out_cannot(gather):
    held, go = threading.Event(), threading.Event()

    def carry_out(command):
        held.set()
        go.wait(20)
        worker.put(Discarded(command.seq))

    worker = RoleWorker("test", carry_out)
    worker.submit([Score(1, ())])
    assert held.wait(20)
    worker.submit([Score(seq, ()) for seq in (2, 3, 4, 5)])
    assert worker.take_out(lambda command: command.seq % 2 == 1) == [Score(3, ()), Score(5, ())]
    assert worker.take_out(lambda command: command.seq == 1) == []
    go.set()
    assert gather(worker, lambda events: len(events) == 3, "all") == [Discarded(seq) for seq in (1, 2, 4)]
    assert worker.close(5.0)


def test_an_error_is_raised_after_what_came_before_it(until):
    def carry_out(command):
        if command.seq == 2:
            raise ZeroDivisionError("in the thread")
        worker.put(Discarded(command.seq))

    worker = RoleWorker("test", carry_out)
    worker.submit([Score(seq, ()) for seq in (1, 2, 3)])
    assert worker.events(20.0) == [Discarded(1)]
    for _ in range(2):  # and it stays broken
        with pytest.raises(ZeroDivisionError, match="in the thread"):
            worker.events(20.0)
    assert worker.close(5.0)


def test_an_error_from_elsewhere_ends_it():
    carried_out = []
    worker = RoleWorker("test", carried_out.append)
    worker.fail(OSError("the first"))
    worker.fail(OSError("the second"))
    worker.submit([Score(1, ())])
    with pytest.raises(OSError, match="the first"):
        worker.events(1.0)
    assert worker.close(5.0)
    assert carried_out == []


def test_what_another_controller_does_not_want_to_hear(until):
    held, go, done = threading.Event(), threading.Event(), []

    def carry_out(command):
        held.set()
        go.wait(20)
        done.append(command.seq)

    worker = RoleWorker("test", carry_out)
    worker.put(Discarded(0))
    worker.submit([Score(1, ())])
    assert held.wait(20)
    worker.submit([Score(2, ())])
    worker.forget()
    worker.submit([Score(3, ())])
    assert not worker.close(0.01)  # the first is under way
    go.set()
    assert worker.close(5.0)
    assert done == [1]
    assert worker.events(0.0) == []
