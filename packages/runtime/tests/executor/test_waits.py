"""Every wait ends: with a result, an error, or its deadline; and it can be seen while it lasts."""

import math
from concurrent.futures import Future

import pytest

from tailrace.runtime.errors import DeadlineError
from tailrace.runtime.executor.seam import DONE, MemberDeadError
from tailrace.runtime.executor.waits import Waits, together


@pytest.fixture
def heard():
    return []


def waits_for(heard, future, *, timeout_s=5.0):
    woken = []
    waits = Waits(woken.append)
    waits.add("an answer", 10.0, timeout_s, future, heard.append, heard.append)
    return waits, woken


def test_a_result_is_handed_on_in_the_loop_only(heard):
    future = Future()
    waits, woken = waits_for(heard, future)
    future.set_result(7)
    assert heard == []
    waits.settle(woken[0])
    assert heard == [7]
    waits.expire(100.0)
    assert heard == [7]


def test_a_deadline_says_what_was_waited_for_and_a_late_answer_is_ignored(heard):
    future = Future()
    waits, woken = waits_for(heard, future)
    assert waits.next_deadline_s() == 15.0
    assert waits.visible(12.0) == [("an answer", 2.0, 3.0)]
    waits.expire(15.0)
    assert isinstance(heard[0], DeadlineError)
    assert "waited 5 s for an answer" in str(heard[0])
    future.set_result(7)
    waits.settle(woken[0])
    assert len(heard) == 1


def test_together_waits_for_all_and_fails_with_the_first():
    first, second = Future(), Future()
    whole = together([first, second])
    second.set_result(2)
    assert not whole.done()
    first.set_result(1)
    assert whole.result(0) == [1, 2]
    third, fourth = Future(), Future()
    whole = together([third, fourth])
    fourth.set_exception(OSError("gone"))
    with pytest.raises(OSError, match="gone"):
        whole.result(0)
    third.set_result(3)


def test_together_fails_once_when_several_fail(caplog):
    first, second = Future(), Future()
    whole = together([first, second])
    first.set_exception(OSError("first"))
    second.set_exception(OSError("second"))
    with pytest.raises(OSError, match="first"):
        whole.result(0)
    assert caplog.records == []  # a future only logs what its callback raises


def test_a_call_that_was_cancelled_with_its_member_is_an_error_like_any_other(heard):
    future = Future()
    waits, woken = waits_for(heard, future)
    assert future.cancel()
    waits.settle(woken[0])
    assert isinstance(heard[0], MemberDeadError)


def test_together_fails_when_one_is_cancelled():
    first, second = Future(), Future()
    whole = together([first, second])
    second.cancel()
    with pytest.raises(MemberDeadError):
        whole.result(0)
    first.set_result(1)


def test_a_wait_without_an_answer_ends_when_somebody_says_so(heard):
    waits = Waits([].append)
    number = waits.add("a version", 0.0, 5.0, None, heard.append, heard.append)
    waits.settle(number)
    assert heard == [None]
    waits.expire(9.0)
    assert heard == [None]


def test_progress_moves_the_deadline(heard):
    waits = Waits([].append)
    number = waits.add("outcomes", 0.0, 5.0, None, heard.append, heard.append)
    waits.renew(number, 3.0, 5.0)
    waits.renew(number + 1, 3.0, 5.0)  # of one that is over
    waits.renew(number, 3.5, 1.0)  # never to an earlier time
    assert waits.next_deadline_s() == 8.0
    waits.expire(7.9)
    assert not heard
    waits.expire(8.5)
    assert "waited 5 s for outcomes" in str(heard[0])  # since the last progress


def test_nothing_is_waited_for_of_a_member_that_is_gone(heard):
    waits, gone, left = Waits([].append), object(), object()
    numbers = [
        waits.add(str(i), 0.0, 5.0 + i, None, heard.append, heard.append, owner) for i, owner in enumerate((gone, left))
    ]
    waits.forget(gone)
    assert [what for what, _, _ in waits.visible(1.0)] == ["1"]
    assert waits.next_deadline_s() == 6.0
    waits.settle(numbers[0])
    assert not heard


def test_the_longest_wait_is_shown_first():
    waits = Waits([].append)
    for what, since_s, limit_s in (("second", 2.0, 1.0), ("first", 1.0, 9.0), ("third", 3.0, 5.0)):
        waits.add(what, since_s, limit_s, Future(), print, print)
    assert [what for what, _, _ in waits.visible(4.0)] == ["first", "second", "third"]


def test_what_has_no_deadline_of_its_own_is_not_shown():
    waits = Waits([].append)
    waits.add("events", 0.0, math.inf, Future(), print, print)
    assert waits.visible(100.0) == []
    assert waits.next_deadline_s() == math.inf


def test_together_of_what_is_done_already():
    assert together([DONE]).result() == [None]
    assert together([DONE, DONE]).result() == [None, None]
