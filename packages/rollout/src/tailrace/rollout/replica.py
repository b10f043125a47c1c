"""The worker of a rollout replica: one engine, driven by one thread.

    submit(command) ──► order ──► worker thread ──► flusher thread ──► source.append ──► outbox ──► events(timeout_s)
                                   │  one round: carry out commands, engine.step(), buffer tokens
                                   └─ source.begin (prompts, kept tokens), weights.load (a version)

The worker waits for: a command, when nothing is in flight; the flusher, when the source is far behind. Both have deadlines.

Invariants:
* Commands are carried out once and in the order in which they were given, whatever the transport did to them (see `Order`).
* Tokens are in the source before the controller hears that their trajectory finished or stopped (see `Flusher`).
* All tokens that a trajectory gets between `Route` and its end come from one version: weights change only when nothing is in
  flight, and then every trajectory is taken over anew.
* A version is served only if its weights arrived completely. From the first tensor of a load until its end the replica
  serves nothing, and after a load that broke off it refuses work until a pull succeeds.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tailrace.contracts import (
    Abort,
    Clock,
    Delta,
    Engine,
    Event,
    Finished,
    FinishReason,
    Interrupt,
    Interrupted,
    Pull,
    Pulled,
    PullFailed,
    Request,
    Route,
    Snapshot,
)
from tailrace.rollout.errors import (
    CloseTimeoutError,
    EngineDiedError,
    ReplicaCrashedError,
    ReplicaNotReadyError,
    RouteConflictError,
    SourceMismatchError,
)
from tailrace.rollout.flusher import Batch, Flusher, Outbox
from tailrace.rollout.order import Order, ReplicaCommand
from tailrace.rollout.ports import PartialDelta, ResumeLike, SamplingTable, TrajectorySource, WeightSource
from tailrace.rollout.resumption import finished_with


class MonotonicClock:
    """The machine's monotonic clock."""

    def now(self) -> float:
        """Seconds since an arbitrary start."""
        return time.monotonic()


@dataclass(slots=True)
class _InFlight:
    route: int
    tokens: int  # response tokens so far, kept ones included


@dataclass(slots=True)
class _Unsent:
    """Tokens of one trajectory that the flusher has not been given yet."""

    offset: int
    tokens: list[int]
    logprobs: list[float]
    finish: FinishReason | None = None


class ReplicaWorker:
    """Carries out commands on an engine and reports events. The engine is its own from here on: `close` closes it.

    Args:
        replica: name of the replica.
        engine: a rollout engine that serves no version yet.
        source: prompts and kept tokens; takes new tokens.
        weights: weight versions.
        sampling: how a trajectory's tokens are drawn.
        flush_s: tokens are handed to the source this often.
        snapshot_s: a `Snapshot` is sent this often, and whenever everything in flight has finished.
        pull_timeout_s: deadline of a pull.
        flush_timeout_s: deadline of the source for one batch of tokens.
        clock: paces flushes and snapshots.
    """

    def __init__(
        self,
        replica: str,
        engine: Engine,
        source: TrajectorySource,
        weights: WeightSource,
        *,
        sampling: SamplingTable,
        flush_s: float = 0.1,
        snapshot_s: float = 0.25,
        pull_timeout_s: float = 120.0,
        flush_timeout_s: float = 60.0,
        clock: Clock | None = None,
    ) -> None:
        self._replica, self._engine, self._source, self._weights = replica, engine, source, weights
        self._sampling, self._flush_s, self._snapshot_s = sampling, flush_s, snapshot_s
        self._pull_timeout_s = pull_timeout_s
        self._clock = clock or MonotonicClock()
        self._wake = threading.Condition()
        self._order = Order()
        self._rejected: deque[str] = deque()
        self._closing = False
        self._outbox = Outbox()
        self._flusher = Flusher(replica, source, self._outbox, self._reject, flush_timeout_s)
        # From here on: the worker thread's own.
        self._version: int | None = None
        self._in_flight: dict[str, _InFlight] = {}
        self._begun: list[str] = []
        self._unsent: dict[str, _Unsent] = {}
        self._events: list[Event] = []
        self._last_seq = 0
        self._finished = 0
        self._tokens_since_snapshot = 0
        self._flushed_at = self._snapshot_at = self._clock.now()
        self._dropped = 0
        self._unshown = False
        self._thread = threading.Thread(target=self._run, name=f"replica-{replica}", daemon=True)
        self._flusher.start()
        self._thread.start()

    def submit(self, command: ReplicaCommand) -> None:
        """Take a command, which is carried out when those given before it have been. Returns at once, from any thread.

        Raises:
            ReplicaCrashedError: the worker has stopped.
        """
        with self._wake:
            if not self._closing and self._outbox.error is None:
                self._order.add(command)
                self._wake.notify()
                return
        raise self._crash(f"replica {self._replica!r} does not take {type(command).__name__} {command.seq}")

    def adopt(self) -> None:
        """Another controller takes over, which numbers its commands anew. To be called when nothing is in flight."""
        with self._wake:
            self._order.restart()
            self._last_seq = 0

    def events(self, timeout_s: float) -> list[Event]:
        """Everything that happened since the last call; waits until something has, or returns an empty list at the deadline.

        Raises:
            ReplicaCrashedError: the worker stopped on an error, its cause; all events from before it have been returned.
        """
        events = self._outbox.take(timeout_s)
        if not events and self._outbox.error is not None:
            raise self._crash(f"replica {self._replica!r} crashed")
        return events

    def alive(self) -> bool:
        """Whether the worker runs and takes commands."""
        return self._thread.is_alive() and self._flusher.alive() and self._outbox.error is None

    @property
    def dropped(self) -> int:
        """Trajectories that the source had dropped or given to somebody else while they were on their way or running here."""
        return self._dropped

    def close(self, timeout_s: float) -> None:
        """Stop generation, hand all tokens over and close the engine. What happened until then can still be collected.

        Raises:
            CloseTimeoutError: the worker or the source did not come to an end before the deadline.
        """
        deadline = time.monotonic() + timeout_s
        with self._wake:
            self._closing = True
            self._wake.notify()
        self._thread.join(timeout_s)
        stopped = self._flusher.stop(max(0.0, deadline - time.monotonic()))
        if self._thread.is_alive() or not stopped:
            waited_for = "its engine" if self._thread.is_alive() else "the trajectory source"
            raise CloseTimeoutError(
                f"replica {self._replica!r} did not stop within {timeout_s} s: it waits for {waited_for}"
            )

    # ------------------------------------------------------------------------------------------------ worker thread

    def _run(self) -> None:
        try:
            while self._round():
                pass
            if self._outbox.error is None:
                self._record(self._engine.abort(list(self._in_flight)))
                self._flush()
        except BaseException as error:
            # Not swallowed: events() raises it.
            self._outbox.fail(error)
        finally:
            try:
                self._engine.close()
            except Exception as error:
                self._outbox.fail(error)

    def _round(self) -> bool:
        """One round; false when the replica is to close."""
        with self._wake:
            if not self._in_flight and not self._order.ready and not self._rejected and not self._closing:
                self._wake.wait(max(0.0, self._snapshot_at + self._snapshot_s - self._clock.now()))
            commands = self._order.take()
            rejected = list(self._rejected)
            self._rejected.clear()
            closing = self._closing
        if self._outbox.error is not None:
            return False
        self._drop(rejected)
        busy = bool(self._in_flight)
        for command in commands:
            self._carry_out(command)
        if closing:
            return False
        if self._in_flight:
            self._record(self._engine.step())
        now = self._clock.now()
        # A snapshot that shows what was just routed waits until the engine has taken it into its batch: before that it
        # would look like a full KV cache.
        self._unshown = self._unshown or bool(commands)
        settled = self._unshown and (not self._in_flight or not self._engine.stats().waiting)
        if settled or (busy and not self._in_flight) or now - self._snapshot_at >= self._snapshot_s:
            self._snapshot(now)
        elif now - self._flushed_at >= self._flush_s:
            self._flush()
        self._flusher.check()
        return True

    def _carry_out(self, command: ReplicaCommand) -> None:
        match command:
            case Route():
                self._route(command)
            case Interrupt():
                self._interrupt(command.trajectories, command.seq)
            case Abort():
                self._drop(self._not_newer_than(command), count=False)
            case Pull():
                self._pull(command)
        if not isinstance(command, Abort):  # those go to every replica, outside the chain
            self._last_seq = max(self._last_seq, command.seq)

    def _route(self, route: Route) -> None:
        if self._version is None:
            raise ReplicaNotReadyError(
                f"replica {self._replica!r} got Route {route.seq} and serves no version; pull one completely first"
            )
        refs = {ref.trajectory: ref for ref in route.trajectories}
        conflict = refs.keys() & self._in_flight.keys()
        if conflict:
            raise RouteConflictError(
                f"replica {self._replica!r} generates {min(conflict)!r} already (Route {route.seq})"
            )
        resumes = {resume.trajectory: resume for resume in self._begin(route)}
        requests = []
        for id_, resume in resumes.items():
            sampling = self._sampling(refs[id_])
            kept = tuple(resume.kept_tokens)
            self._begun.append(id_)
            if resume.complete:
                reason = finished_with(kept, sampling) or FinishReason.STOP
                self._finished += 1
                self._events.append(Finished(self._replica, id_, len(kept), reason, answers=route.seq))
                continue
            self._in_flight[id_] = _InFlight(route.seq, len(kept))
            requests.append(Request(id_, tuple(resume.prompt_tokens), sampling, kept))
        self._dropped += len(refs) - len(resumes)
        self._engine.submit(requests)

    def _begin(self, route: Route) -> Sequence[ResumeLike]:
        assert self._version is not None
        resumes = self._source.begin(self._replica, self._version, route.trajectories)
        ids = [resume.trajectory for resume in resumes]
        unasked = set(ids) - {ref.trajectory for ref in route.trajectories}
        if unasked or len(set(ids)) < len(ids):
            raise SourceMismatchError(
                f"the trajectory source answered Route {route.seq} with {sorted(unasked) or ids}, expected each of the "
                "trajectories that were asked for at most once"
            )
        return resumes

    def _interrupt(self, trajectories: Iterable[str], seq: int | None) -> None:
        ids = [id_ for id_ in trajectories if id_ in self._in_flight]
        self._record(self._engine.abort(ids))
        for id_ in ids:
            state = self._in_flight.pop(id_, None)
            if state is not None:  # otherwise it has just finished, which has been recorded
                self._events.append(Interrupted(self._replica, id_, state.tokens, answers=seq))
        self._flush()

    def _drop(self, trajectories: Iterable[str], *, count: bool = True) -> None:
        """Stop trajectories that are none of ours any more: their tokens and events go nowhere."""
        ids = set(trajectories)
        self._unsent = {id_: unsent for id_, unsent in self._unsent.items() if id_ not in ids}
        self._events = [event for event in self._events if getattr(event, "trajectory", None) not in ids]
        running = sorted(ids & self._in_flight.keys())
        if running:
            self._engine.abort(running)
        for id_ in running:
            del self._in_flight[id_]
        if count:
            self._dropped += len(ids)

    def _not_newer_than(self, abort: Abort) -> list[str]:
        """Its trajectories but for those that a later command brought anew: an abort is not in the chain, it may come late."""
        newer = {id_ for id_, state in self._in_flight.items() if state.route > abort.seq}
        ended = (event for event in self._events if isinstance(event, Finished))
        newer.update(event.trajectory for event in ended if (event.answers or 0) > abort.seq)
        return [id_ for id_ in abort.trajectories if id_ not in newer]

    def _pull(self, pull: Pull) -> None:
        self._interrupt(list(self._in_flight), None)
        touched = False

        def arriving(tensors: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
            nonlocal touched
            for named in tensors:
                touched = True
                self._version = None
                yield named

        try:
            with self._weights.load(pull.version, self._pull_timeout_s) as tensors:
                self._engine.load_weights(arriving(tensors))
        except EngineDiedError:
            raise
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            if touched:
                reason += "; the load broke off midway, so the replica serves nothing until a pull succeeds"
            self._events.append(PullFailed(self._replica, pull.version, reason, answers=pull.seq))
        else:
            self._version = pull.version
            self._events.append(Pulled(self._replica, pull.version, answers=pull.seq))
        self._flush()

    def _record(self, deltas: Sequence[Delta]) -> None:
        for delta in deltas:
            state = self._in_flight.get(delta.id)
            if state is None:
                continue
            unsent = self._unsent.get(delta.id)
            if unsent is None:
                unsent = self._unsent[delta.id] = _Unsent(state.tokens, [], [])
            unsent.tokens += delta.tokens
            unsent.logprobs += delta.logprobs
            unsent.finish = delta.finish
            state.tokens += len(delta.tokens)
            self._tokens_since_snapshot += len(delta.tokens)
            if delta.finish is not None:
                del self._in_flight[delta.id]
                self._finished += 1
                self._events.append(Finished(self._replica, delta.id, state.tokens, delta.finish, answers=state.route))

    def _snapshot(self, now: float) -> None:
        stats = self._engine.stats()
        elapsed_s = now - self._snapshot_at
        self._events.append(
            Snapshot(
                self._replica,
                kv=stats.kv,
                running=min(stats.running, len(self._in_flight)),
                waiting=max(0, len(self._in_flight) - stats.running),
                finished=self._finished,
                version=self._version,
                last_seq=self._last_seq,
                tokens_per_s=self._tokens_since_snapshot / elapsed_s if elapsed_s > 0 else 0.0,
                kv_capacity_tokens=stats.kv_capacity_tokens,
            )
        )
        self._snapshot_at, self._tokens_since_snapshot = now, 0
        self._unshown = False
        self._flush()

    def _flush(self) -> None:
        self._flushed_at = self._clock.now()
        if not (self._begun or self._unsent or self._events):
            return
        deltas = []
        if self._unsent:
            assert self._version is not None
            for id_, unsent in self._unsent.items():
                tokens, logprobs = tuple(unsent.tokens), tuple(unsent.logprobs)
                deltas.append(PartialDelta(id_, unsent.offset, self._version, tokens, logprobs, unsent.finish))
        self._flusher.put(Batch(tuple(self._begun), tuple(deltas), tuple(self._events)))
        self._begun, self._unsent, self._events = [], {}, []

    # ------------------------------------------------------------------------------------------------ other threads

    def _reject(self, trajectories: Sequence[str]) -> None:
        with self._wake:
            self._rejected.extend(trajectories)
            self._wake.notify()

    def _crash(self, what: str) -> ReplicaCrashedError:
        cause = self._outbox.error
        error = ReplicaCrashedError(f"{what}: {type(cause).__name__}: {cause}" if cause else f"{what}: it is closing")
        error.__cause__ = cause
        return error
