"""The queue, the batch and the environment of one engine, and what happens where they meet.

The rules are those of vLLM's V1 scheduler. At each boundary between two steps of the batch, in this order:

1. What has all its tokens leaves; after a turn that is not the last, for the environment.
2. While the next step, one token for each trajectory, does not fit in the KV cache, the trajectory that was admitted last
   is preempted: its cache is dropped and it goes to the front of the queue.
3. What has come back from the environment joins the end of the queue.
4. The head of the queue is admitted while there are fewer than `max_running` and its context (prompt and tokens so far) and
   the next step of everybody fit, with the watermark to spare. Its prefill stalls the whole batch; the end of the prefill is
   a boundary too.

Between boundaries the batch does not change, so its steps are a sum in closed form (`steps.py`) and nothing is touched until
the next boundary that matters: the first finish, a full cache, or an admission. What is asked for in between is computed from
the start of the batch, so results do not depend on how often anybody asks.

Invariants: the queue's head cannot be admitted now, or the batch ends at the next boundary, where it can (else a trajectory
would wait beside free memory); a batch that runs has room for its next step (else a step would overfill the cache).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from heapq import heappop, heappush
from math import inf

from tailrace.fleetsim.engine.costs import DecodeTime, PrefillTime
from tailrace.fleetsim.engine.meter import Meter, Totals
from tailrace.fleetsim.engine.steps import kv_token_s, steps_s, steps_within
from tailrace.fleetsim.engine.work import Work
from tailrace.fleetsim.errors import EngineError

Seat = tuple[int, int, Work]
"""A trajectory in the batch: minus the step at which its turn ends, minus its number in the order of admission, itself.
So the end of a sorted list is the next to finish, and what finishes at the same step leaves in the order of admission."""


class Batching:
    """The state of an engine and its boundaries; `Engine` is what callers see, and documents the arguments."""

    __slots__ = (
        "_admissible_tokens",
        "_away",
        "_batch_s",
        "_capacity",
        "_ends_e",
        "_ends_s",
        "_finished",
        "_first_s",
        "_fixed_s",
        "_growth_s",
        "_kv",
        "_max_running",
        "_meter",
        "_now_s",
        "_order",
        "_per_token_s",
        "_prefill_of",
        "_prefix_cached",
        "_queue",
        "_returning",
        "_returns_s",
        "_running",
        "_seats",
        "_since_e",
        "_since_s",
        "_speed",
        "_stall_s",
        "_start_e",
        "_step",
        "_steps",
        "_wall_per_engine_s",
        "_works",
        "preemptions",
    )

    def __init__(
        self,
        decode: DecodeTime,
        prefill: PrefillTime,
        *,
        max_running: int,
        start_s: float = 0.0,
        prefix_cached: float = 0.0,
        watermark: float = 0.01,
    ) -> None:
        capacity = decode.kv_capacity_tokens
        if max_running < 1 or capacity < 2 or not 0.0 <= prefix_cached <= 1.0 or not 0.0 <= watermark < 1.0:
            raise EngineError(
                f"found max_running={max_running}, {capacity} tokens of KV cache, prefix_cached={prefix_cached}, "
                f"watermark={watermark}, expected at least 1, at least 2, a share, a share below 1"
            )
        self._fixed_s, self._per_token_s = decode.fixed_s, decode.per_token_s
        self._prefill_of = prefill.seconds
        self._max_running, self._prefix_cached = max_running, prefix_cached
        self._capacity = capacity
        self._admissible_tokens = capacity - int(capacity * watermark)
        # Where the trajectories are. `_works` knows all of them, `_running` those in the batch in the order of admission.
        self._works: dict[str, Work] = {}
        self._queue: deque[Work] = deque()
        self._running: dict[str, Seat] = {}
        self._seats: list[Seat] = []
        self._away: dict[str, tuple[float, int, Work]] = {}  # in the environment, until when
        self._returning: list[tuple[float, int, Work]] = []  # the same, as a heap
        self._finished: list[tuple[float, str, int]] = []
        self._order = 0
        # The clocks: engine seconds ("e") = `_since_e` + (wall seconds - `_since_s`) * speed.
        self._now_s = self._since_s = self._since_e = start_s
        self._speed = self._wall_per_engine_s = 1.0
        # The batch under way: a prefill of `_stall_s` until `_start_e`, then `_steps` steps in `_batch_s` until `_ends_e`.
        self._step = 0  # steps that the engine had done at its start
        self._kv = 0  # tokens in the KV cache at its start
        self._stall_s = self._batch_s = self._first_s = self._growth_s = 0.0
        self._start_e = self._ends_e = start_s
        self._steps = 0
        self._ends_s = self._returns_s = inf
        self._meter = Meter()
        self.preemptions = 0

    # ---- the clocks -------------------------------------------------------------------------------------------------

    def _engine_s(self, wall_s: float) -> float:
        return self._since_e + (wall_s - self._since_s) * self._speed

    def _end_batch_at(self, steps: int, now: float) -> None:
        """The batch ends after so many steps, not before now."""
        self._steps = steps
        self._batch_s = seconds = steps_s(steps, self._first_s, self._growth_s)
        self._ends_e = end = self._start_e + seconds
        factor = self._wall_per_engine_s
        self._ends_s = max(self._since_s + (end - self._since_e) * factor, now) if factor else inf

    def _steps_done(self, now_e: float) -> int:
        """Whole steps of the batch under way; its last one is not done before its end has been dealt with."""
        return steps_within(now_e - self._start_e, self._first_s, self._growth_s, self._steps - 1)

    # ---- boundaries -------------------------------------------------------------------------------------------------

    def _change_batch(self) -> None:
        """The batch under way has come to its end."""
        now, now_e = self._ends_s, self._ends_e
        seats, step, kv = self._seats, self._step, self._kv
        running = len(seats)
        if running:
            steps, seconds, stall_s, meter = self._steps, self._batch_s, self._stall_s, self._meter
            meter.prefill_s += stall_s
            meter.decode_s += seconds
            meter.running_s += running * (stall_s + seconds)
            meter.kv_token_s += kv * stall_s + kv_token_s(running, kv, steps, seconds, self._growth_s)
            meter.tokens += running * steps
            step += steps
            kv += running * steps
            self._step = step
            works, batch = self._works, self._running
            while seats and seats[-1][0] == -step:
                work = seats.pop()[2]
                name = work.id
                del batch[name]
                kv -= work.final
                if work.turn + 1 == len(work.turns):
                    del works[name]
                    work.done_tokens = tokens = work.final - work.prompt_tokens
                    self._finished.append((now, name, tokens))
                else:
                    self._send_away(work, now + work.next_turn(self._prefix_cached))
            while kv + len(seats) > self._capacity:
                kv -= self._preempt(step)
        if self._returns_s <= now:
            self._come_back(now)
        self._start_e = now_e
        self._stall_s = 0.0
        if self._queue:
            kv = self._admit(step, kv)
        self._kv = kv
        self._run_batch()

    def _run_batch(self) -> None:
        """The batch is settled: until when does it stay as it is?"""
        seats = self._seats
        running = len(seats)
        if not running:
            self._steps = 0
            self._batch_s = 0.0
            self._ends_s = inf
            return
        kv, per_token_s = self._kv, self._per_token_s
        steps = -seats[-1][0] - self._step
        room = (self._capacity - kv) // running
        if room < steps:
            steps = room
        # As `_end_batch_at`, without the calls: this is the hot path.
        self._first_s = first_s = self._fixed_s(running) + per_token_s * kv
        self._growth_s = growth_s = 0.5 * per_token_s * running
        self._steps = steps
        self._batch_s = seconds = steps * (first_s + growth_s * (steps - 1))
        self._ends_e = end = self._start_e + seconds
        factor = self._wall_per_engine_s
        self._ends_s = self._since_s + (end - self._since_e) * factor if factor else inf

    def _admit(self, step: int, kv: int) -> int:
        """Admit from the queue what may be; returns the tokens in the KV cache then."""
        queue, seats, batch, prefill_of = self._queue, self._seats, self._running, self._prefill_of
        running = len(seats)
        most, order, stall_s = self._max_running, self._order, 0.0
        admissible = self._admissible_tokens if running else self._capacity
        fresh: list[Seat] = []
        while queue and running < most:
            work = queue[0]
            context = work.final - work.left
            if kv + context + running + 1 > admissible:
                break
            admissible = self._admissible_tokens
            queue.popleft()
            kv += context
            running += 1
            order += 1
            seat = (-step - work.left, -order, work)
            batch[work.id] = seat
            fresh.append(seat)
            stall_s += prefill_of(context, work.cached)
        self._order = order
        self._stall_s = stall_s
        self._start_e += stall_s
        if len(fresh) * 8 < len(seats):
            for seat in fresh:
                insort(seats, seat)
        else:
            seats += fresh
            seats.sort()
        return kv

    def _preempt(self, step: int) -> int:
        """Preempt the trajectory that was admitted last; returns the tokens that leave the KV cache."""
        _, seat = self._running.popitem()
        del self._seats[bisect_left(self._seats, seat)]
        work = seat[2]
        work.left = -seat[0] - step
        work.cached = 0
        self._queue.appendleft(work)
        self.preemptions += 1
        return work.final - work.left

    # ---- between boundaries -----------------------------------------------------------------------------------------

    def _admit_next(self, now: float) -> None:
        """If the head of the queue can be admitted at the next boundary, the batch ends there."""
        now_e = self._engine_s(now)
        running = len(self._seats)
        if not running:
            self._start_e = self._ends_e = now_e
            self._stall_s = 0.0
            self._ends_s = now
            return
        if running >= self._max_running:
            return
        done = self._steps_done(now_e)
        whole_s = steps_s(done, self._first_s, self._growth_s)
        boundary = done if now_e <= self._start_e + whole_s else done + 1
        work = self._queue[0]
        kv = self._kv + running * boundary
        if boundary < self._steps and kv + work.final - work.left + running + 1 <= self._admissible_tokens:
            self._end_batch_at(boundary, now)

    def _take_out(self, leaving: list[Work], now: float) -> None:
        """Trajectories leave from wherever they are, with their progress; `_works` has forgotten them."""
        now_e = self._engine_s(now)
        done, before, kv = self._steps_done(now_e), self._under_way(now_e), self._kv
        batch, seats, away = self._running, self._seats, self._away
        running = len(seats)
        queued = set()
        for work in leaving:
            name = work.id
            work.environment_s = 0.0
            if name in batch:
                seat = batch.pop(name)
                del seats[bisect_left(seats, seat)]
                work.left = -seat[0] - self._step - done
                kv -= work.final - work.left
            elif name in away:
                work.environment_s = away.pop(name)[0] - now
            else:
                queued.add(work)
            work.done_tokens = work.final - work.prompt_tokens - work.left
        if queued:
            self._queue = deque(work for work in self._queue if work not in queued)
        if len(away) < len(self._returning):
            self._returning = sorted(away.values())
            self._returns_s = self._returning[0][0] if away else inf
        if len(seats) < running:
            self._shrink_batch(now, done, kv + running * done, before)

    def _shrink_batch(self, now: float, done: int, kv: int, before: Totals) -> None:
        """The batch, `done` steps on, has lost trajectories and holds `kv` tokens now; until now it had done `before`.

        A prefill under way takes as long as it would have. A step under way is finished by those that stay, in the time
        that it takes them, but not before now. With nobody left, either is over.
        """
        now_e = self._engine_s(now)
        if now_e > self._start_e:
            self._start_e += steps_s(done, self._first_s, self._growth_s)
            self._stall_s = 0.0
        self._step += done
        self._kv = kv
        self._run_batch()
        if self._seats:
            if now_e > self._start_e + self._first_s:
                self._start_e = now_e - self._first_s
            self._end_batch_at(self._steps, now)
        self._meter.replace(before, self._under_way(now_e))

    def _send_away(self, work: Work, until: float) -> None:
        self._order += 1
        away = (until, self._order, work)
        self._away[work.id] = away
        heappush(self._returning, away)
        self._returns_s = self._returning[0][0]

    def _come_back(self, now: float) -> None:
        """What has been in the environment until now joins the end of the queue."""
        returning = self._returning
        while returning and returning[0][0] <= now:
            work = heappop(returning)[2]
            del self._away[work.id]
            self._queue.append(work)
        self._returns_s = returning[0][0] if returning else inf

    # ---- what has been done -----------------------------------------------------------------------------------------

    def _under_way(self, now_e: float) -> Totals:
        """What the batch under way has done until now; the meter has what went before."""
        running, kv, stall_s = len(self._seats), self._kv, self._stall_s
        since_s = now_e - self._start_e
        if not running:
            return Totals()
        if since_s <= 0.0:
            stall_s += since_s
            return Totals(prefill_s=stall_s, kv_token_s=kv * stall_s, running_s=running * stall_s)
        done = self._steps_done(now_e)
        whole_s = steps_s(done, self._first_s, self._growth_s)
        kv_integral = kv * stall_s + kv_token_s(running, kv, done, whole_s, self._growth_s)
        kv_integral += (kv + running * done) * (since_s - whole_s)
        return Totals(stall_s, since_s, kv_integral, running * (stall_s + since_s), running * done)
