"""A member of the local host that is killed: every call that it has not answered says the same, whatever it waited for."""

import threading

import pytest

from tailrace.contracts import Place
from tailrace.runtime.executor.doors import Ready
from tailrace.runtime.executor.seam import MemberDeadError, RoleSpec
from tailrace.runtime.hosts.local import LocalHost

CALLS = 12  # more than a member has threads


class Slow:
    """A role whose calls return once it is told."""

    go = threading.Event()

    def __init__(self, began=None):
        self.closed = False
        if began is not None:
            began.wait(30)

    def ready(self):
        return Ready()

    def wait(self):
        self.go.wait(30)
        return "done"

    def close(self):
        self.go.set()


@pytest.fixture
def host():
    Slow.go.clear()
    host = LocalHost()
    yield host
    Slow.go.set()
    host.close()


def killed(call):
    """The error of a call of a member that was killed."""
    error = call.exception(30)
    assert isinstance(error, MemberDeadError), error
    assert not call.cancelled()
    return str(error)


def test_calls_under_way_and_calls_that_wait_for_a_thread_say_that_it_was_killed(host):
    member = host.spawn("environment", "0", 1, RoleSpec(Slow), Place())
    assert member.call("ready").result(30).took.keys() == {"initialise", "load"}
    calls = [member.call("wait") for _ in range(CALLS)]
    member.kill()
    Slow.go.set()
    assert {killed(call) for call in (*calls, member.call("wait"))} == {"environment-0-1 was killed"}


def test_one_that_is_killed_before_it_is_built_says_the_same(host):
    began = threading.Event()
    first = host.spawn("scorer", "0", 1, RoleSpec(Slow, {"began": began}), Place())
    second = host.spawn("environment", "0", 1, RoleSpec(Slow), Place())  # one is built at a time
    calls = [second.call("ready") for _ in range(CALLS)]
    second.kill()
    began.set()
    assert {killed(call) for call in calls} == {"environment-0-1 was killed"}
    assert first.call("ready").result(30).took.keys() == {"initialise", "load"}


def test_calls_are_answered_and_errors_are_those_of_the_role(host):
    member = host.spawn("environment", "0", 1, RoleSpec(Slow), Place())
    Slow.go.set()
    calls = [member.call("wait") for _ in range(CALLS)]
    assert [call.result(30) for call in calls] == ["done"] * CALLS
    assert isinstance(member.call("no_such_method").exception(30), AttributeError)
