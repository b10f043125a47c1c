"""A rollout engine with continuous batching, in virtual time.

    add ──► queue ──► batch ──► finished
              ▲         │
              └─────────┘  preempted, when the KV cache is full

The rules are those of vLLM's V1 scheduler, with two exceptions: a prefill is not cut into chunks that share a step with
decoding, and the watermark is that of vLLM's older block manager (V1 has none). At each boundary between two steps:
1. Trajectories that are complete leave.
2. While the next step, one token for each trajectory, does not fit in the KV cache, the trajectory that was admitted last
   is preempted: its cache is dropped and it goes to the front of the queue.
3. The head of the queue is admitted while fewer than `max_running` run, and its context (prompt and tokens so far) and the
   next step of all fit and leave the watermark free. Its prefill stalls the whole batch; the end of the prefill is a
   boundary too.

Between boundaries the batch does not change. So the time of its steps has a closed form (`state.py`), and no state changes
until the next boundary that matters: the first finish, a full cache, or an admission. Values asked for in between are computed
from the start of the batch, so results do not depend on how often they are asked for.
Invariants: if the queue's head can be admitted at the next boundary, the batch ends there (otherwise a trajectory would wait
although memory is free); a running batch has room for its next step (otherwise a step would overfill the cache).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterable
from math import inf, nextafter

from tailrace.fleetsim.engine.state import EngineState, EngineTotals, Seat, Work, steps_s
from tailrace.fleetsim.errors import EngineError, WorkError


class Boundaries(EngineState):
    """The rules of an engine: when trajectories enter and leave the batch."""

    __slots__ = ()

    def _change_batch(self) -> None:
        """End the current batch and begin the next one. This is the hot path, so the closed forms are written out."""
        now, step, kv, seats = self._ends_s, self._step, self._kv, self._seats
        running = len(seats)
        if running:
            steps, seconds, meter = self._steps, self._batch_s, self._meter
            grown = running * steps
            meter.decode_s += seconds
            meter.running_s += running * seconds
            meter.kv_token_s += (kv + 0.5 * (grown - running)) * seconds
            meter.kv_token_s += grown * self._growth_s * (steps * steps - 1) / 6.0
            meter.tokens += grown
            if self._stall_s:
                meter.prefill_s += self._stall_s
                meter.running_s += running * self._stall_s
                meter.kv_token_s += kv * self._stall_s
                self._stall_s = 0.0
            kv += grown
            self._step = step = step + steps
            finishing = -step
            while seats and seats[-1][0] == finishing:
                work = seats.pop()[2]
                name = work.id
                del self._running[name]
                kv -= work.final
                del self._works[name]
                work.done_tokens = tokens = work.response_tokens
                self._finished.append((now, name, tokens))
            while kv + len(seats) > self._capacity:
                kv -= self._preempt(step)
        self._start_e = self._ends_e
        if self._queue:
            kv = self._admit(step, kv)
        self._kv = kv
        self._run_batch()

    def _admit(self, step: int, kv: int) -> int:
        """Admit trajectories from the queue. Returns the tokens in the KV cache afterwards."""
        queue, seats, batch, prefill_of = self._queue, self._seats, self._running, self._prefill_of
        running = len(seats)
        places, backward, order, stall_s = self._max_running - running, -step, self._order, 0.0
        needed = kv + running + 1  # tokens after the next step, with one more trajectory without context
        admissible = self._admissible_tokens if running else self._capacity
        fresh: list[Seat] = []
        while queue and places:
            work = queue[0]
            left = work.left
            context = work.final - left
            if needed + context > admissible:
                break
            admissible = self._admissible_tokens
            queue.popleft()
            kv += context
            needed += context + 1
            places -= 1
            order -= 1
            batch[work.id] = seat = (backward - left, order, work)
            fresh.append(seat)
            stall_s += prefill_of(context, work.cached)
        if not fresh:
            return kv
        self._order = order
        self._stall_s = stall_s
        self._start_e += stall_s
        if len(fresh) * 8 < running:
            for seat in fresh:
                insort(seats, seat)
        else:
            seats += fresh
            seats.sort()
        return kv

    def _preempt(self, step: int) -> int:
        """Preempt the trajectory that was admitted last. Returns the tokens that leave the KV cache."""
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
        """End the batch at the next boundary if the head of the queue can be admitted there."""
        now_e = self._engine_s(now)
        running = len(self._seats)
        if not running:
            self._start_e = self._ends_e = now_e
            self._ends_s = now
            return
        if running >= self._max_running:
            return
        boundary = 0
        if now_e > self._start_e:
            done = self._steps_done(now_e)
            boundary = done if now_e <= self._start_e + steps_s(done, self._first_s, self._growth_s) else done + 1
        work = self._queue[0]
        kv = self._kv + running * boundary
        if boundary < self._steps and kv + work.final - work.left + running + 1 <= self._admissible_tokens:
            self._end_batch_at(boundary, now)

    def _take_out(self, leaving: list[Work], now: float) -> None:
        """Remove trajectories from the batch and the queue, with their progress; `_works` has none of them."""
        now_e = self._engine_s(now)
        done, before, kv = self._steps_done(now_e), self._under_way(now_e), self._kv
        batch, seats = self._running, self._seats
        running = len(seats)
        queued = set()
        for work in leaving:
            name = work.id
            if name in batch:
                seat = batch.pop(name)
                del seats[bisect_left(seats, seat)]
                work.left = -seat[0] - self._step - done
                kv -= work.final - work.left
            else:
                queued.add(work)
            work.done_tokens = work.response_tokens - work.left
        if queued:
            self._queue = deque(work for work in self._queue if work not in queued)
        if len(seats) < running:
            self._shrink_batch(now, done, kv + running * done, before)

    def _shrink_batch(self, now: float, done: int, kv: int, before: EngineTotals) -> None:
        """Continue the batch after it lost trajectories.


        A prefill under way takes as long as before. A step under way is finished by the remaining trajectories, in the time
        that they need, but not before the next instant. If none remain, both end.

        Args:
            now: the time.
            done: steps that the batch has done.
            kv: tokens that it holds now.
            before: its totals until now.
        """
        now_e = self._engine_s(now)
        if now_e > self._start_e:
            self._start_e += steps_s(done, self._first_s, self._growth_s)
            self._stall_s = 0.0
        self._step += done
        self._kv = kv
        self._run_batch()
        if self._seats:
            if now_e - self._start_e >= self._first_s:
                self._start_e = now_e - self._first_s
                # Rounding must not make the step count as done, which it would even while the engine hangs.
                while now_e - self._start_e >= self._first_s:
                    self._start_e = nextafter(self._start_e, inf)
            self._end_batch_at(self._steps, now)
        self._meter.restart(before, self._under_way(now_e))


class ModelledEngine(Boundaries):
    """One replica's engine.

    Args:
        decode: seconds of a decode step, and the capacity of the KV cache.
        prefill: seconds of a prefill.
        max_running: most trajectories in a batch (vLLM: `max_num_seqs`).
        start_s: the time at which its clock begins.
        watermark: share of the KV cache that an admission must leave free, so that the trajectory is not preempted at once
            (vLLM's block manager: 0.01; 0 for none). It does not apply to the only trajectory of a batch.
    Seconds are on one clock for all engines of a fleet ("wall"); `set_speed` makes this engine slower or faster on it.

    Raises:
        EngineError: a number is out of its range, or a time is before an earlier one.
    """

    __slots__ = ()

    # ---- what comes and goes ----------------------------------------------------------------------------------------

    def add(self, works: Iterable[Work], now: float) -> None:
        """Put trajectories at the end of the queue, in order; all of them or, on an error, none.

        Raises:
            WorkError: a trajectory is here already, has nothing to generate, or does not fit an empty KV cache.
        """
        self.advance(now)
        known, queue, capacity = self._works, self._queue, self._capacity
        fresh: list[Work] = []
        try:
            for work in works:
                name = work.id
                if name in known:
                    raise WorkError(f"trajectory {name} is on this engine already, expected each once")
                tokens = work.begin()
                if tokens > capacity:
                    raise WorkError(
                        f"trajectory {name} has {tokens} tokens with its prompt, expected at most the {capacity} that fit "
                        f"into the KV cache"
                    )
                known[name] = work
                fresh.append(work)
        except BaseException:
            for work in fresh:
                del known[work.id]
            raise
        waited = bool(queue)
        queue.extend(fresh)
        if queue and not waited:
            self._admit_next(now)
            self.advance(now)

    def remove(self, ids: Iterable[str], now: float) -> list[tuple[str, int]]:
        """Remove trajectories. Returns the id and the response tokens so far of those that were here.

        A step under way is finished by the remaining trajectories, in the time that they need, and not before now.
        """
        self.advance(now)
        known = self._works
        leaving = [known.pop(name) for name in ids if name in known]
        if not leaving:
            return []
        self._take_out(leaving, now)
        if self._queue:
            self._admit_next(now)
            self.advance(now)
        return [(work.id, work.done_tokens) for work in leaving]

    def clear(self, now: float) -> list[tuple[str, int]]:
        """Remove all (see `remove`): batch in order of admission, queue. Finished ones can still be taken."""
        self.advance(now)
        queue = [work.id for work in self._queue]
        return self.remove([*self._running, *queue], now)

    def take_finished(self) -> list[tuple[float, str, int]]:
        """(time, id, response tokens) of each trajectory that finished since the last call, in order of time."""
        finished, self._finished = self._finished, []
        return finished

    # ---- time -------------------------------------------------------------------------------------------------------

    def advance(self, now: float) -> None:
        """Advance the engine to `now`, including changes at `now`."""
        if not self._now_s <= now < inf:
            raise EngineError(
                f"found time {now} s, expected a finite time from {self._now_s} s on, where the engine is"
            )
        self._now_s = now
        while self._ends_s <= now:
            self._change_batch()

    def next_finish_s(self) -> float:
        """A lower bound of the time of the next finish; infinity if there is none.

        It is exact unless the batch changes before: by a full cache or an admission.
        """
        return self._ends_s

    def set_speed(self, factor: float, now: float) -> None:
        """Do the work of `factor` modelled seconds in one second from now on; 0 hangs the engine."""
        if not 0.0 <= factor < inf:
            raise EngineError(f"found speed {factor}, expected 0 or more")
        self.advance(now)
        if factor == self._speed:
            return
        now_e = self._engine_s(now)
        self._meter.change_speed(self._under_way(now_e), self._wall_per_engine_s)
        self._since_s, self._since_e, self._speed = now, now_e, factor
        self._wall_per_engine_s = 1.0 / factor if factor else 0.0
        if self._seats:
            self._end_batch_at(self._steps, now)
            self.advance(now)

    # ---- what can be seen, as of the last call ----------------------------------------------------------------------

    @property
    def running(self) -> int:
        """Number of trajectories in the batch."""
        return len(self._seats)

    @property
    def waiting(self) -> int:
        """Number of trajectories in the queue."""
        return len(self._queue)

    def holds(self, name: str) -> bool:
        """Whether a trajectory is here; it may have ended since the engine was advanced."""
        return name in self._works

    def done_tokens(self, name: str) -> int:
        """Response tokens so far of a trajectory that is here."""
        work, seat = self._works[name], self._running.get(name)
        done = self._steps_done(self._engine_s(self._now_s))
        return work.response_tokens - (work.left if seat is None else -seat[0] - self._step - done)

    @property
    def ids(self) -> list[str]:
        """The trajectories in the batch and in the queue."""
        return list(self._works)

    @property
    def kv_tokens(self) -> int:
        """Tokens in the KV cache."""
        return self._kv + len(self._seats) * self._steps_done(self._engine_s(self._now_s))

    @property
    def kv_share(self) -> float:
        """Share of the KV cache in use, 0 to 1."""
        return self.kv_tokens / self._capacity

    def totals(self) -> EngineTotals:
        """The integrals below together, in wall seconds; that of the KV cache in token-seconds."""
        return self._meter.wall(self._under_way(self._engine_s(self._now_s)), self._wall_per_engine_s)

    @property
    def prefill_s(self) -> float:
        """Seconds spent on prefill."""
        return self.totals().prefill_s

    @property
    def decode_s(self) -> float:
        """Seconds spent on decode steps."""
        return self.totals().decode_s

    @property
    def busy_s(self) -> float:
        """Seconds spent on prefill and decode steps. A hung engine is not busy."""
        totals = self.totals()
        return totals.prefill_s + totals.decode_s

    @property
    def tokens(self) -> int:
        """Response tokens generated here."""
        return self.totals().tokens

    @property
    def kv_share_s(self) -> float:
        """Integral of `kv_share` over the busy seconds."""
        return self.totals().kv_token_s / self._capacity

    @property
    def running_s(self) -> float:
        """Integral of `running` over the busy seconds."""
        return self.totals().running_s
