"""The tokens and events (snapshots included) that a replica has not handed to its flusher yet."""

from __future__ import annotations

import math
from collections.abc import Set
from dataclasses import dataclass

from tailrace.contracts import (
    Clock,
    Delta,
    EngineStats,
    Event,
    Finished,
    FinishReason,
    PartialDelta,
    Refused,
    Snapshot,
    TurnEnded,
)
from tailrace.rollout.flusher import FlushedBatch, Flusher
from tailrace.rollout.standstill import Standstill


@dataclass(slots=True)
class _Unsent:
    offset: int
    version: int
    tokens: list[int]
    logprobs: list[float]
    finish: FinishReason | None = None
    turn_ends: bool = False


class Reports:
    """Collects tokens and events and hands them to the flusher at intervals. Not thread-safe: only the worker uses it.

    Args:
        replica: name of the replica.
        flusher: takes batches; it may make the worker wait.
        standstill: counts engine steps, and is told of that waiting.
        clock: the clock for both intervals.
        flush_s: seconds between two batches.
        finished_s: seconds to a batch in which `Finished` is all that is new.
        partial_s: seconds between two batches with tokens of responses that go on; those of others are in every batch.
        snapshot_s: seconds between two `Snapshot` events, about.
    """

    def __init__(
        self,
        replica: str,
        flusher: Flusher,
        standstill: Standstill,
        clock: Clock,
        *,
        flush_s: float,
        finished_s: float,
        partial_s: float,
        snapshot_s: float,
    ) -> None:
        self._replica, self._flusher, self._standstill, self._clock = replica, flusher, standstill, clock
        self._flush_s, self._finished_s = flush_s, finished_s
        self._partial_s, self._snapshot_s = partial_s, snapshot_s
        self._begun: list[str] = []
        self._unsent: dict[str, _Unsent] = {}
        self._events: list[Event] = []
        self._finished = 0
        self._tokens_since_snapshot = 0
        self._flushed_at = self._partials_at = self._snapshot_at = clock.now()

    @property
    def snapshot_due_s(self) -> float:
        """Seconds until the next periodic snapshot; 0 if it is due.

        They are due at multiples of `snapshot_s`, so that the replicas of a machine report at one time, but half of it after
        the last one at least.
        """
        period_s = self._snapshot_s
        due = (math.floor(self._snapshot_at / period_s + 0.5) + 1) * period_s
        return max(0.0, due - self._clock.now())

    def began(self, trajectory: str) -> None:
        """Note that this replica took a trajectory over."""
        self._begun.append(trajectory)

    def tokens(self, delta: Delta, offset: int, version: int, *, turn_ends: bool) -> None:
        """Add new tokens of a trajectory.

        Args:
            delta: the tokens.
            offset: index of the first one in its response.
            version: the version that made them.
            turn_ends: whether the end that `delta` may have is that of a turn, and not of the response.
        """
        unsent = self._unsent.get(delta.id)
        if unsent is None:
            unsent = self._unsent[delta.id] = _Unsent(offset, version, [], [])
        unsent.tokens += delta.tokens
        unsent.logprobs += delta.logprobs
        unsent.turn_ends = turn_ends
        unsent.finish = None if turn_ends else delta.finish
        self._tokens_since_snapshot += len(delta.tokens)

    def event(self, event: Event) -> None:
        """Add an event. It is sent once all earlier tokens are in the source."""
        self._finished += isinstance(event, Finished)
        self._events.append(event)

    def ended_since(self, seq: int) -> set[str]:
        """Trajectories routed by a command after this one whose `Finished`, `TurnEnded` or `Refused` is not sent yet."""
        ended = (event for event in self._events if isinstance(event, Finished | TurnEnded | Refused))
        return {event.trajectory for event in ended if (event.answers or 0) > seq}

    def forget(self, trajectories: Set[str]) -> None:
        """Drop the tokens and events of trajectories that no longer belong to this replica."""
        self._unsent = {id_: unsent for id_, unsent in self._unsent.items() if id_ not in trajectories}
        self._events = [event for event in self._events if getattr(event, "trajectory", None) not in trajectories]

    def snapshot(self, stats: EngineStats, in_flight: int, version: int | None, last_seq: int) -> None:
        """Add a `Snapshot` after everything collected so far."""
        now = self._clock.now()
        elapsed_s = now - self._snapshot_at
        self._events.append(
            Snapshot(
                self._replica,
                kv=stats.kv,
                running=min(stats.running, in_flight),
                waiting=max(0, in_flight - stats.running),
                finished=self._finished,
                version=version,
                last_seq=last_seq,
                tokens_per_s=self._tokens_since_snapshot / elapsed_s if elapsed_s > 0 else 0.0,
                kv_capacity_tokens=stats.kv_capacity_tokens,
                steps=self._standstill.steps,
                preemptions=stats.preemptions,
                cached_tokens=stats.cached_tokens,
                max_running=stats.max_running,
            )
        )
        self._snapshot_at, self._tokens_since_snapshot = now, 0
        self.flush()

    def flush_if_due(self) -> None:
        """Flush if `flush_s` has passed since the last flush, or `finished_s` where nothing but ends of responses is new."""
        now = self._clock.now()
        passed_s = now - self._flushed_at
        if passed_s < self._flush_s:
            return
        more = now - self._partials_at >= self._partial_s or any(type(event) is not Finished for event in self._events)
        if more or passed_s >= self._finished_s:
            self.flush()

    def flush(self, *, everything: bool = False) -> None:
        """Hand to the flusher what was collected: all events, and the tokens of the responses that they are about.

        Tokens of responses that go on wait, since each costs the source less with more beside it.

        Args:
            everything: their tokens too, though `partial_s` has not passed since they were handed over last.

        Raises:
            FlushTimeoutError: the trajectory source is behind for longer than the deadline.
        """
        now = self._flushed_at = self._clock.now()
        sent = self._unsent
        if everything or now - self._partials_at >= self._partial_s:
            self._partials_at, self._unsent = now, {}
        else:
            about = {getattr(event, "trajectory", None) for event in self._events}
            sent = {id_: self._unsent.pop(id_) for id_ in [*self._unsent] if id_ in about}
        if not (self._begun or sent or self._events):
            return
        deltas = tuple(
            PartialDelta(
                id_, made.offset, made.version, tuple(made.tokens), tuple(made.logprobs), made.finish, made.turn_ends
            )
            for id_, made in sent.items()
        )
        with self._standstill.elsewhere():
            self._flusher.put(FlushedBatch(tuple(self._begun), deltas, tuple(self._events)))
        self._begun, self._events = [], []
