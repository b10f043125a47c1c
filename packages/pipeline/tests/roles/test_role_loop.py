"""A role's event loop in its thread: what breaks it is told, whoever breaks it, and nobody waits for it without end."""

import asyncio
import threading

import pytest

from tailrace.contracts import Activity
from tailrace.pipeline.roles.role_loop import RoleLoop


def told(number):
    return Activity("scorer", "0", str(number))


@pytest.fixture
def make():
    loops = []

    def start(**options):
        loops.append(RoleLoop("test", **options))
        return loops[-1]

    yield start
    for loop in loops:
        loop.close()


@pytest.fixture
def served(make):
    """A loop that serves until it is closed, and `ended`, which is set once it has."""
    loop, ended = make(), threading.Event()

    async def serve(up):
        up()
        await loop.closing.wait()
        ended.set()

    loop.start(serve)
    return loop, ended


def test_it_starts_once_its_coroutine_is_up_and_keeps_what_was_told_before(make):
    loop, seen = make(), []

    async def serve(up):
        loop.queue.put(told(1))
        await asyncio.sleep(0.05)
        seen.append("up")
        up()
        await loop.closing.wait()

    loop.start(serve)
    assert seen == ["up"]
    assert loop.events(0.0) == [told(1)]
    assert loop.events(0.0) == []


def test_what_keeps_it_from_coming_up_is_raised_by_start(make):
    loop = make()

    async def serve(up):
        raise ZeroDivisionError("no workers")

    with pytest.raises(ZeroDivisionError, match="no workers"):
        loop.start(serve)


def test_what_breaks_it_later_is_raised_by_events_behind_what_was_told(make):
    loop = make()
    go = asyncio.Event()

    async def serve(up):
        up()
        await go.wait()
        loop.queue.put(told(1), told(2))
        raise ZeroDivisionError("in the loop")

    loop.start(serve)
    loop.post(go.set)
    assert loop.events(30.0) == [told(1), told(2)]
    for _ in range(2):  # it stays broken
        with pytest.raises(ZeroDivisionError, match="in the loop"):
            loop.events(30.0)


def break_by_post(loop):
    def breaks(number):
        raise ZeroDivisionError(number)

    loop.post(breaks, 7)


def break_by_task(loop):
    async def breaks():
        raise ZeroDivisionError(7)

    loop.post(lambda: loop.task(breaks()))


@pytest.mark.parametrize("break_it", [break_by_post, break_by_task])
def test_what_breaks_beside_it_ends_it_and_is_raised_by_events(served, break_it):
    loop, ended = served
    break_it(loop)
    with pytest.raises(ZeroDivisionError, match="7"):
        loop.events(30.0)
    assert ended.wait(30)


def test_a_command_that_comes_after_it_broke_does_not_hide_why(make):
    loop, go = make(), asyncio.Event()

    async def serve(up):
        up()
        await go.wait()
        raise ZeroDivisionError("the cause")

    loop.start(serve)
    loop.post(go.set)
    loop._thread.join(30)
    loop.post(print)  # it was "Event loop is closed", which the executor took for the cause
    with pytest.raises(ZeroDivisionError, match="the cause"):
        loop.events(0.0)


def test_a_task_that_is_cancelled_breaks_nothing(served):
    loop, ended = served
    over = threading.Event()

    def cancel():
        task = loop.task(asyncio.sleep(600))
        task.add_done_callback(lambda _: over.set())
        task.cancel()

    loop.post(cancel)
    assert over.wait(30)
    assert loop.events(0.0) == []
    assert not ended.is_set()


def test_functions_run_in_its_thread_in_their_order(served):
    loop, _ = served
    for number in range(100):
        loop.post(lambda number=number: loop.queue.put(told((threading.current_thread().name, number))))
    events = []
    while len(events) < 100:
        events += loop.events(30.0)
    assert events == [told(("test", number)) for number in range(100)]


def test_another_controller_hears_nothing_of_the_last_one(served):
    loop, _ = served
    dropped = []

    async def forget():
        loop.queue.put(told(2))
        dropped.append(threading.current_thread().name)

    loop.queue.put(told(1))
    loop.adopt(forget)
    assert dropped == ["test"]
    assert loop.events(0.0) == []


def test_adoption_has_a_deadline(make):
    loop = make(close_s=0.1)

    async def serve(up):
        up()
        await loop.closing.wait()

    loop.start(serve)
    with pytest.raises(TimeoutError):
        loop.adopt(loop.closing.wait)


def test_it_ends_when_it_is_closed_however_often(served):
    loop, ended = served
    loop.close()
    assert ended.is_set()
    loop.close()


def test_closing_waits_no_longer_than_its_deadline(make):
    loop, go = make(close_s=0.1), threading.Event()

    async def serve(up):
        up()
        await loop.closing.wait()
        go.wait(30)  # it does not end by itself

    loop.start(serve)
    loop.close()
    assert loop._thread.is_alive()
    go.set()
    loop._thread.join(30)
    assert not loop._thread.is_alive()


def test_one_that_was_never_started_is_closed_too(make):
    make().close()
