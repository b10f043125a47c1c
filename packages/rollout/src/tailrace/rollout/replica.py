"""The worker of a rollout replica: one engine, driven by one thread.

    submit(command) ──► order ──► worker thread ──► flusher thread ──► source.append ──► outbox ──► events(timeout_s)
                                   │  one round: carry out commands, engine.step(), collect reports
                                   └─ source.begin (prompts, kept tokens), weights.load (a version)

The worker waits for a command if nothing is in flight, and for the flusher if the source is far behind. Both have deadlines.
The engine may also never return; then the thread that calls `events` reports it, since the worker cannot (see `Standstill`).

Invariants:
* Each command is carried out once, in the order in which they were given, even if they arrive in another (see `CommandOrder`).
* Tokens are in the source before the controller hears that their trajectory finished, ended a turn or stopped (see `Flusher`).
* A replica begins with one version only, whose weights it has completely (see `ReplicaWork`).
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from tailrace.contracts import Clock, Engine, Event
from tailrace.rollout.command_order import CommandOrder, ReplicaCommand
from tailrace.rollout.errors import CloseTimeoutError, ReplicaCrashedError
from tailrace.rollout.flusher import Flusher, ReplicaOutbox
from tailrace.rollout.in_flight import ReplicaWork
from tailrace.rollout.ports import SamplingRule, TrajectorySource, WeightSource
from tailrace.rollout.reports import Reports
from tailrace.rollout.served_weights import WeightComparison
from tailrace.rollout.standstill import GENERATING, IDLE, Standstill


class MonotonicClock:
    """The machine's monotonic clock."""

    def now(self) -> float:
        """Seconds since an arbitrary start."""
        return time.monotonic()


class ReplicaWorker:
    """Carries out commands on an engine and reports events. It owns the engine; `close` closes it.

    Args:
        replica: name of the replica.
        engine: a rollout engine that serves no version yet.
        source: gives prompts and kept tokens, takes new tokens.
        weights: gives weight versions.
        sampling: how a trajectory's tokens are drawn.
        flush_s: seconds between two batches to the source: of tokens and of events, which wait for them.
        finished_s: seconds to a batch in which `Finished` is all that is new, so that more of them travel together; the last
            one of all in flight waits for nothing. None: as `flush_s`.
        partial_s: seconds between two batches with tokens of responses that go on, which are lost with the replica; those of
            ended and interrupted ones are in every batch. None: as `flush_s`.
        snapshot_s: seconds between two `Snapshot` events; there is also one when everything in flight has finished.
        pull_timeout_s: deadline of a pull.
        flush_timeout_s: deadline of the source for one batch of tokens.
        versions: versions whose weights the engine has at once, for trajectories in flight to end under the one that they began
            with: of adapters, on an engine that applies so many (its option ``adapters``). With 1 a pull interrupts all.
        sleep_level: how deep the engine sleeps while its devices are lent (`Engine.sleep`); 0: not at all.
        still_report_s: seconds between two `Activity` events while the engine has work and yields no token; there is one
            more when it continues.
        clock: the clock for all of these.
        on_phase: called in the worker's thread as it begins "prefill" (the first step of what was routed), "decode" (any other
            step), "sleep" and "wake", and in the middle of a "pull". What it raises crashes the replica.
        comparison: how much of the weights is compared, after each pull, with what the engine has, which is a `DigestingEngine`
            then. If they differ, the replica serves nothing, and `PullFailed` names the parameter. None: nothing is compared.
    """

    def __init__(
        self,
        replica: str,
        engine: Engine,
        source: TrajectorySource,
        weights: WeightSource,
        *,
        sampling: SamplingRule,
        flush_s: float = 0.1,
        finished_s: float | None = None,
        partial_s: float | None = None,
        snapshot_s: float = 0.25,
        pull_timeout_s: float = 120.0,
        flush_timeout_s: float = 60.0,
        sleep_level: int = 0,
        versions: int = 1,
        still_report_s: float = 5.0,
        clock: Clock | None = None,
        on_phase: Callable[[str], None] = lambda _: None,
        comparison: WeightComparison | None = None,
    ) -> None:
        clock = clock or MonotonicClock()
        self._replica, self._engine = replica, engine
        self._wake = threading.Condition()
        self._order = CommandOrder()
        self._rejected: deque[str] = deque()
        self._closing = False
        self._stalled = False
        self._outbox = ReplicaOutbox()
        self._flusher = Flusher(replica, source, self._outbox, self._reject, flush_timeout_s)
        self._standstill = Standstill(replica, still_report_s, clock)
        # Only the worker thread uses the attributes below.
        self._reports = Reports(
            replica,
            self._flusher,
            self._standstill,
            clock,
            flush_s=flush_s,
            finished_s=flush_s if finished_s is None else finished_s,
            partial_s=flush_s if partial_s is None else partial_s,
            snapshot_s=snapshot_s,
        )
        self._work = ReplicaWork(
            replica,
            engine,
            source,
            weights,
            sampling=sampling,
            reports=self._reports,
            standstill=self._standstill,
            pull_timeout_s=pull_timeout_s,
            sleep_level=sleep_level,
            versions=versions,
            on_phase=self._at_phase,
            comparison=comparison,
        )
        self._on_phase = on_phase
        self._thread = threading.Thread(target=self._run, name=f"replica-{replica}", daemon=True)
        self._flusher.start()
        self._thread.start()

    def submit(self, command: ReplicaCommand) -> None:
        """Take a command, to be carried out after those before it. Returns at once; any thread may call it.

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
        """Prepare for another controller, which numbers its commands anew. Call it only when nothing is in flight."""
        with self._wake:
            self._order.restart()
            self._work.last_seq = 0

    def events(self, timeout_s: float) -> list[Event]:
        """All events since the last call; waits for the first until the deadline, then returns an empty list.

        The caller's thread checks here whether the engine stands still, since the worker's thread may be stuck in it.

        Raises:
            ReplicaCrashedError: the worker stopped on an error, which is the cause of this one. All earlier events have been
                returned.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            left_s = max(0.0, deadline - time.monotonic())
            events = self._outbox.take(min(left_s, self._standstill.look_s))
            if self._outbox.error is None:
                events += self._standstill.news()
            else:
                events += self._outbox.take(0)  # events that came since the first take
                if not events:
                    raise self._crash(f"replica {self._replica!r} crashed")
            if events or not left_s:
                return events

    def alive(self) -> bool:
        """Whether the worker runs and takes commands."""
        return self._thread.is_alive() and self._flusher.alive() and self._outbox.error is None

    @property
    def dropped(self) -> int:
        """Number of routed or running trajectories that the source dropped or gave to another replica."""
        return self._work.dropped

    def stall(self) -> None:
        """Inject a fault: the engine stands still until `close`, whatever is in flight, or told to sleep or to wake."""
        self._stalled = True

    def close(self, timeout_s: float) -> None:
        """Stop generation, hand all tokens over and close the engine. `events` still returns what happened until then.

        Raises:
            CloseTimeoutError: the worker or the source did not finish before the deadline.
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
                self._work.stop()
        except BaseException as error:
            # Not swallowed: events() raises this error.
            self._outbox.fail(error)
        finally:
            try:
                self._engine.close()
            except Exception as error:
                self._outbox.fail(error)
            self._standstill.at(IDLE)

    def _round(self) -> bool:
        """Do one round. Returns False when the replica should close."""
        with self._wake:
            if not (len(self._work) or self._order.ready or self._rejected or self._closing):
                self._wake.wait(self._reports.snapshot_due_s)
            commands = self._order.take()
            rejected = list(self._rejected)
            self._rejected.clear()
            closing = self._closing
        if self._outbox.error is not None:
            return False
        if rejected:
            self._work.reject(rejected)
        busy = bool(len(self._work))
        for command in commands:
            self._work.carry_out(command)
        if closing:
            return False
        if len(self._work):
            if self._stalled:
                self._stand_still()
                return False
            self._work.step()
        idle_now = busy and not len(self._work)
        self._work.show(now=idle_now or self._reports.snapshot_due_s == 0)
        self._flusher.check()
        return True

    def _at_phase(self, phase: str) -> None:
        self._on_phase(phase)
        if self._stalled and phase in ("sleep", "wake"):
            self._wait_for_close()

    def _stand_still(self) -> None:
        self._standstill.at(GENERATING)
        self._wait_for_close()

    def _wait_for_close(self) -> None:
        with self._wake:
            self._wake.wait_for(lambda: self._closing)

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
