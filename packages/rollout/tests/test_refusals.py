"""A request that the engine refuses fails alone: the replica says so and goes on with the others."""

from tailrace.contracts import Abort, Finished, Refused, Snapshot
from tailrace.rollout.testing import FakeEngine, MemorySource

from .replica_harness import Harness, prompts, route


class Choosy(FakeEngine):
    """Refuses prompts that begin with an even number, as an engine does that knows nothing of our errors."""

    def submit(self, requests):
        for request in requests:
            if request.prompt[0] % 2 == 0:
                raise ValueError(f"no even prompts like {request.prompt[0]}")
            super().submit([request])


def test_a_request_that_the_engine_refuses_fails_alone():
    with Harness(MemorySource(prompts(5)), engine=Choosy()) as h:
        h.pull(1)
        h.worker.submit(route(2, "0", "1", "2", "3", "4"))
        h.until("the others", lambda: len(h.of(Finished)) == 2)
        assert [(event.trajectory, event.reason, event.answers) for event in h.of(Refused)] == [
            (name, f"no even prompts like {name}", 2) for name in "024"
        ]
        h.until("a snapshot", lambda: isinstance(h.seen[-1], Snapshot) and not h.seen[-1].running)
        assert h.worker.alive()
        h.worker.submit(route(3, "3", "2"))  # and it takes more
        h.until("the next", lambda: len(h.of(Refused)) == 4)


def test_a_snapshot_follows_where_everything_was_refused():
    with Harness(MemorySource(prompts(3)), engine=Choosy(), snapshot_s=100.0) as h:
        h.pull(1)
        before = len(h.seen)
        h.worker.submit(route(2, "0", "2"))
        h.until("a snapshot", lambda: any(isinstance(event, Snapshot) for event in h.seen[before:]))
        kinds = [type(event) for event in h.seen[before:]]
        assert kinds == [Refused, Refused, Snapshot]
        assert (h.seen[-1].last_seq, h.seen[-1].running, h.seen[-1].waiting) == (2, 0, 0)


def test_an_abort_of_before_does_not_swallow_the_refusal_of_a_later_route():
    with Harness(MemorySource(prompts(3)), engine=Choosy(), flush_s=100.0, snapshot_s=0.2) as h:
        h.pull(1)
        h.worker.submit(route(3, "0", "1"))
        h.worker.submit(Abort(2, ("0", "1")))
        h.until("the refusal", lambda: h.of(Refused))
