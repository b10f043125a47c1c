"""What breaks in a replica, in its source or its engine is raised, and never silent."""

import threading

import pytest

from tailrace.contracts import Abort, Finished, Resume
from tailrace.rollout import (
    CloseTimeoutError,
    FlushTimeoutError,
    ReplicaCrashedError,
    ReplicaNotReadyError,
    RouteConflictError,
    SourceMismatchError,
)
from tailrace.rollout.testing import FakeEngine, MemorySource

from .replica_harness import DEADLINE_S, Harness, Slow, prompts, route


def crash(h):
    with pytest.raises(ReplicaCrashedError) as raised:
        h.until("the crash", lambda: False)
    assert not h.worker.alive()
    with pytest.raises(ReplicaCrashedError):
        h.worker.submit(Abort(9, ()))
    return raised.value.__cause__


def test_work_before_the_first_pull_is_a_loud_error():
    with Harness(MemorySource(prompts(1))) as h:
        h.worker.submit(route(1, "0"))
        assert isinstance(crash(h), ReplicaNotReadyError)
    assert h.engine.closed


def test_work_that_runs_already_is_a_loud_error():
    with Harness(MemorySource(prompts(1)), engine=Slow()) as h:
        h.pull(1)
        h.worker.submit(route(2, "0"))
        h.worker.submit(route(3, "0"))
        assert isinstance(crash(h), RouteConflictError)


def test_a_source_that_answers_something_else_is_a_loud_error():
    class Wrong(MemorySource):
        def begin(self, replica, version, refs, seq):
            return [Resume("other", (1,), ())]

    with Harness(Wrong(prompts(1))) as h:
        h.pull(1)
        h.worker.submit(route(2, "0"))
        assert isinstance(crash(h), SourceMismatchError)


def test_a_source_that_fails_is_a_loud_error():
    class Failing(MemorySource):
        def append(self, replica, deltas):
            raise OSError("disk full")

    with Harness(Failing(prompts(1))) as h:
        h.pull(1)
        h.worker.submit(route(2, "0"))
        assert isinstance(crash(h), OSError)
        assert not h.of(Finished)


def test_a_source_that_hangs_is_a_loud_error_and_close_says_so():
    gate = threading.Event()

    class Hanging(MemorySource):
        def append(self, replica, deltas):
            gate.wait(DEADLINE_S)
            return []

    h = Harness(Hanging(prompts(1)), flush_timeout_s=0.1)
    h.pull(1)
    h.worker.submit(route(2, "0"))
    assert isinstance(crash(h), FlushTimeoutError)
    with pytest.raises(CloseTimeoutError, match="trajectory source"):
        h.worker.close(0.1)
    gate.set()
    h.worker.close(DEADLINE_S)


def test_an_engine_that_fails_is_a_loud_error():
    class Failing(FakeEngine):
        def step(self):
            raise RuntimeError("out of memory")

    with Harness(MemorySource(prompts(1)), engine=Failing()) as h:
        h.pull(1)
        h.worker.submit(route(2, "0"))
        assert "out of memory" in str(crash(h))
