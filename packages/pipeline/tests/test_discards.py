"""What is dropped and begun anew: the executor has the store drop it first, whatever order members work in."""

from concurrent.futures import Future
from types import SimpleNamespace

import pytest

from tailrace.contracts import Abort, Route, TrajectoryRef
from tailrace.pipeline.executors.deployment import Deadlines
from tailrace.pipeline.executors.executor import Executor


class Told:
    """A member that remembers what it was told, and answers when the test does."""

    pid = node = None

    def __init__(self):
        self.calls, self.answers = [], []

    def call(self, method, *arguments):
        self.calls.append((method, *arguments))
        self.answers.append(Future())
        return self.answers[-1]

    def kill(self):
        pass


@pytest.fixture
def executor():
    made = Executor(host=None, deployment=SimpleNamespace(deadlines=Deadlines()))
    made._members = {("data", "0"): Told(), ("replica", "r0"): Told(), ("replica", "r1"): Told()}
    made._controller, made._log = SimpleNamespace(finished=True, failure=None), SimpleNamespace()  # nobody decides
    return made


def route(seq, replica, *names, after=0):
    return Route(seq, replica, tuple(TrajectoryRef(name, 0, 0) for name in names), after)


def told(executor, replica):
    return [command for _, command in executor._members["replica", replica].calls]


def answer(executor, number):
    executor._members["data", "0"].answers[number].set_result([])
    executor._take(1.0)


def test_what_is_being_discarded_is_begun_anew_only_after_that(executor):
    abort, anew, other = Abort(1, ("e0.1",)), route(2, "r0", "e0.1", "7.0"), route(3, "r1", "7.1")
    for command in (abort, anew, other):
        executor._carry_out(command)
    assert told(executor, "r0") == [abort]
    assert told(executor, "r1") == [abort, other]
    answer(executor, 0)
    assert told(executor, "r0") == [abort, anew]


def test_each_discard_of_a_trajectory_counts(executor):
    anew = route(3, "r0", "e0.1")
    for command in (Abort(1, ("e0.1",)), Abort(2, ("e0.1", "e0.2")), anew):
        executor._carry_out(command)
    answer(executor, 1)
    assert anew not in told(executor, "r0")
    answer(executor, 0)
    assert told(executor, "r0")[-1] == anew


def test_a_route_to_a_replica_that_has_died_is_void(executor):
    executor._carry_out(Abort(1, ("e0.1",)))
    executor._carry_out(route(2, "r0", "e0.1"))
    executor._down("replica", "r0", "killed")
    executor._members["replica", "r0"] = Told()  # its successor, whose chain of commands begins at 0 too
    answer(executor, 0)
    assert told(executor, "r0") == []


def test_nothing_waits_for_what_was_discarded_long_ago(executor):
    executor._carry_out(Abort(1, ("e0.1",)))
    answer(executor, 0)
    anew = route(2, "r0", "e0.1")
    executor._carry_out(anew)
    assert told(executor, "r0")[-1] == anew
    assert not executor._discarding
