"""Every wait ends: with a result, an error, or its deadline; and it can be seen while it lasts."""

from concurrent.futures import Future

import pytest

from tailrace.pipeline.errors import DeadlineError
from tailrace.pipeline.executors.host import MemberDeadError
from tailrace.pipeline.executors.waits import Waits, together


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
    assert waits.next_deadline() == 15.0
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
