"""Sends tokens to the trajectory source, then events to the controller, in a thread beside the decoding thread.

    worker ── batch (deltas, events) ──► bounded queue ──► append to the source ──► acknowledged ──► outbox ── events() ──►

Invariant: an event that a trajectory finished, ended a turn or was interrupted is sent only after the source has acknowledged
all its tokens. Otherwise the controller could score, move or train on a trajectory whose last tokens are lost if this replica
dies.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tailrace.contracts import Event, Finished, Interrupted, PartialDelta, Refused, TurnEnded
from tailrace.rollout.errors import FlushTimeoutError
from tailrace.rollout.ports import TrajectorySource

_DEPTH = 64


class ReplicaOutbox:
    """Events that wait to be collected. Several threads may use it."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._events: deque[Event] = deque()
        self._error: BaseException | None = None

    def put(self, events: Sequence[Event]) -> None:
        """Add events."""
        with self._changed:
            self._events.extend(events)
            self._changed.notify_all()

    def fail(self, error: BaseException) -> None:
        """Record the error that stopped the replica; only the first is kept."""
        with self._changed:
            self._error = self._error or error
            self._changed.notify_all()

    @property
    def error(self) -> BaseException | None:
        """The error that stopped the replica; None if none did."""
        return self._error

    def take(self, timeout_s: float) -> list[Event]:
        """All waiting events; waits for the first until the deadline, or until the replica fails."""
        with self._changed:
            self._changed.wait_for(lambda: self._events or self._error is not None, timeout_s)
            events = list(self._events)
            self._events.clear()
            return events


@dataclass(frozen=True, slots=True)
class FlushedBatch:
    """Tokens and events that leave a replica together.

    Args:
        begun: trajectories that this replica took over since the last batch.
        deltas: new tokens, at most one delta for each trajectory.
        events: events to send once the source has acknowledged the tokens.
    """

    begun: tuple[str, ...]
    deltas: tuple[PartialDelta, ...]
    events: tuple[Event, ...]


class Flusher:
    """The thread between a replica and its trajectory source.

    Args:
        replica: name of the replica.
        source: takes the tokens.
        outbox: takes the events.
        rejected: called in this thread with ids whose tokens the source no longer takes from this replica.
        timeout_s: deadline of the source for one batch; after it the replica fails.
    """

    def __init__(
        self,
        replica: str,
        source: TrajectorySource,
        outbox: ReplicaOutbox,
        rejected: Callable[[Sequence[str]], None],
        timeout_s: float,
    ) -> None:
        self._replica, self._source, self._outbox = replica, source, outbox
        self._rejected, self._timeout_s = rejected, timeout_s
        self._batches: queue.Queue[FlushedBatch | None] = queue.Queue(_DEPTH)
        self._appending_since: float | None = None
        self._thread = threading.Thread(target=self._run, name=f"flusher-{replica}", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def put(self, batch: FlushedBatch) -> None:
        """Queue a batch. Waits while the queue is full.

        Raises:
            FlushTimeoutError: the queue stays full for longer than the deadline.
        """
        try:
            self._batches.put(batch, timeout=self._timeout_s)
        except queue.Full as error:
            raise self._late() from error

    def check(self) -> None:
        """Raise `FlushTimeoutError` if the source has not acknowledged a batch within the deadline."""
        since = self._appending_since
        if since is not None and time.monotonic() - since > self._timeout_s:
            raise self._late()

    def alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    def stop(self, timeout_s: float) -> bool:
        """Flush the queue and stop. Returns whether that was done before the deadline."""
        deadline = time.monotonic() + timeout_s
        if self._thread.is_alive():
            try:
                self._batches.put(None, timeout=timeout_s)
            except queue.Full:
                return False
            self._thread.join(max(0.0, deadline - time.monotonic()))
        return not self._thread.is_alive()

    def _late(self) -> FlushTimeoutError:
        return FlushTimeoutError(
            f"the trajectory source did not acknowledge tokens of replica {self._replica!r} for {self._timeout_s} s"
        )

    def _run(self) -> None:
        lost: set[str] = set()  # rejected and not taken over again since
        try:
            while (batch := self._batches.get()) is not None:
                lost.difference_update(batch.begun)
                if batch.deltas:
                    self._appending_since = time.monotonic()
                    rejected = self._source.append(self._replica, batch.deltas)
                    self._appending_since = None
                    newly = sorted(set(rejected) - lost)
                    if newly:
                        lost.update(newly)
                        self._rejected(newly)
                self._outbox.put([event for event in batch.events if not _concerns(event, lost)])
        except BaseException as error:
            # Not swallowed: the worker stops on this error, and events() raises it.
            self._outbox.fail(error)


def _concerns(event: Event, trajectories: set[str]) -> bool:
    return isinstance(event, Finished | Interrupted | Refused | TurnEnded) and event.trajectory in trajectories
