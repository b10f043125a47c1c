"""A rollout engine with continuous batching, in virtual time.

    add ──► queue ──► batch ──► finished
              ▲         │
              └─────────┘  preempted, when the KV cache is full

`boundaries.py` has the rules and their order.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf

from tailrace.fleetsim.engine.boundaries import Boundaries
from tailrace.fleetsim.engine.state import EngineTotals
from tailrace.fleetsim.engine.work import Work
from tailrace.fleetsim.errors import EngineError, WorkError


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
