"""A replica worker on the fake engine, driven as an executor drives it."""

import time
from contextlib import contextmanager

from tailrace.contracts import AdapterWeights, Pull, Pulled, PullFailed, Route, Sampling, TrajectoryRef
from tailrace.rollout import ReplicaWorker
from tailrace.rollout.testing import FakeEngine, MemoryWeights

LENGTH = 20
STOP = 7
SAMPLING = Sampling(max_tokens=LENGTH, stop_token_ids=(STOP,))
DEADLINE_S = 20.0


def weights(versions=6):
    return MemoryWeights({version: {"w": 100 + version} for version in range(versions)})


def prompts(count):
    return {str(index): (index, index + 1) for index in range(count)}


def route(seq, *trajectories):
    return Route(seq, "r0", tuple(TrajectoryRef(trajectory, int(trajectory), 0) for trajectory in trajectories))


class Harness:
    """A worker, and everything that it has reported."""

    def __init__(self, source, *, engine=None, weights=weights(), sampling=SAMPLING, **options):  # noqa: B008 - read only
        self.source, self.engine, self.seen = source, engine or FakeEngine(), []
        options = {"flush_s": 0.002, "snapshot_s": 0.01, **options}
        self.worker = ReplicaWorker("r0", self.engine, source, weights, sampling=lambda ref: sampling, **options)

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.worker.close(DEADLINE_S)

    def collect(self, timeout_s=0.05):
        events = self.worker.events(timeout_s)
        self.seen += events
        return events

    def until(self, what, done):
        deadline = time.monotonic() + DEADLINE_S
        while not done():
            self.collect()
            assert time.monotonic() < deadline, f"waited for {what}; saw {self.seen[-5:]}"

    def watch(self, seconds):
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self.collect()

    def pull(self, version, seq=1):
        self.worker.submit(Pull(seq, "r0", version))
        self.until("the pull", lambda: any(isinstance(e, Pulled | PullFailed) and e.answers == seq for e in self.seen))

    def of(self, kind):
        return [event for event in self.seen if isinstance(event, kind)]


class Slow(FakeEngine):
    """A step takes a moment, so that commands arrive in the middle of responses."""

    def step(self):
        time.sleep(0.001)
        return super().step()


class Adapters(MemoryWeights):
    """Versions of an adapter (an integer) of a base that weighs 100; one below zero is a control's whole weights."""

    @contextmanager
    def load(self, version, timeout_s):
        value = int(str(next(iter(self.versions[version].values()))))
        yield iter([("w", -value)]) if value < 0 else AdapterWeights({"w": (value, 10)}, 1, 1.0, lambda: [("w", 100)])
