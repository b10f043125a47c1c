"""A replica in a thread of this process: for an engine that shares a process with others, and for tests."""

from __future__ import annotations

from tailrace.contracts import EngineFactory
from tailrace.rollout.replica import ReplicaWorker
from tailrace.rollout.service.handle import ReplicaHandle, ReplicaSetup, StartReplica


def in_thread(build: EngineFactory) -> StartReplica:
    """Start replicas as threads here, with engines of a factory. What such a replica holds ends with this process only."""

    def start(setup: ReplicaSetup) -> ReplicaHandle:
        return ReplicaWorker(
            setup.name,
            build(str(setup.model), setup.options),
            setup.book,
            setup.weights,
            sampling=setup.book.sampling,
            flush_s=setup.flush_s,
            pull_timeout_s=setup.pull_timeout_s,
        )

    return start
