"""The state of an engine, and its current batch in closed form."""

from __future__ import annotations

from collections import deque
from math import inf

from tailrace.fleetsim.engine.costs import DecodeTime, PrefillTime
from tailrace.fleetsim.engine.meter import EngineMeter, EngineTotals
from tailrace.fleetsim.engine.steps import kv_token_s, steps_s, steps_within
from tailrace.fleetsim.engine.work import Work
from tailrace.fleetsim.errors import EngineError

Seat = tuple[int, int, Work]
"""A trajectory in the batch: minus the step at which it ends, minus its number in the order of admission, itself.
So in a sorted list the last is the next to finish, and those that finish at the same step leave in the order of admission."""


class EngineState:
    """The trajectories, the clocks and the current batch; `Engine` documents the arguments.

    The current batch is a prefill of `_stall_s` until `_start_e`, then `_steps` steps in `_batch_s` until `_ends_e`. No state
    changes in between: its totals at any time are computed from its start.
    """

    __slots__ = (
        "_admissible_tokens",
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
        "_queue",
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
        watermark: float = 0.01,
    ) -> None:
        capacity = decode.kv_capacity_tokens
        if max_running < 1 or capacity < 2 or not 0.0 <= watermark < 1.0:
            raise EngineError(
                f"found max_running={max_running}, {capacity} tokens of KV cache, watermark={watermark}, expected at least 1, "
                "at least 2, a share below 1"
            )
        self._fixed_s, self._per_token_s = decode.fixed_s, decode.per_token_s
        self._prefill_of = prefill.seconds
        self._max_running = max_running
        self._capacity = capacity
        self._admissible_tokens = capacity - int(capacity * watermark)
        # Where the trajectories are. `_works` knows all of them, `_running` those in the batch in the order of admission.
        self._works: dict[str, Work] = {}
        self._queue: deque[Work] = deque()
        self._running: dict[str, Seat] = {}
        self._seats: list[Seat] = []
        self._finished: list[tuple[float, str, int]] = []
        self._order = 0  # minus the number of admissions
        # The clocks: engine seconds ("e") = `_since_e` + (wall seconds - `_since_s`) * speed.
        self._now_s = self._since_s = self._since_e = start_s
        self._speed = self._wall_per_engine_s = 1.0
        # The batch under way: a prefill of `_stall_s` until `_start_e`, then `_steps` steps in `_batch_s` until `_ends_e`.
        self._step = 0  # steps that the engine had done at its start
        self._kv = 0  # tokens in the KV cache at its start
        self._stall_s = self._batch_s = self._first_s = self._growth_s = 0.0
        self._start_e = self._ends_e = start_s
        self._steps = 0
        self._ends_s = inf
        self._meter = EngineMeter()
        self.preemptions = 0

    # ---- the clocks -------------------------------------------------------------------------------------------------

    def _engine_s(self, wall_s: float) -> float:
        return self._since_e + (wall_s - self._since_s) * self._speed

    def _end_batch_at(self, steps: int, now: float) -> None:
        """End the batch after `steps` steps, but not before now."""
        self._steps = steps
        self._batch_s = seconds = steps_s(steps, self._first_s, self._growth_s)
        self._ends_e = end = self._start_e + seconds
        factor = self._wall_per_engine_s
        self._ends_s = max(self._since_s + (end - self._since_e) * factor, now) if factor else inf

    def _steps_done(self, now_e: float) -> int:
        """Number of complete steps of the current batch. The last one counts only once the end of the batch is handled."""
        return steps_within(now_e - self._start_e, self._first_s, self._growth_s, self._steps - 1)

    def _run_batch(self) -> None:
        """Compute until when the batch, whose trajectories are now fixed, does not change."""
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
        # The same as `_end_batch_at`, without its calls, since this is the hot path.
        self._first_s = first_s = self._fixed_s(running) + per_token_s * kv
        self._growth_s = growth_s = 0.5 * per_token_s * running
        self._steps = steps
        self._batch_s = seconds = steps * (first_s + growth_s * (steps - 1))
        self._ends_e = end = self._start_e + seconds
        factor = self._wall_per_engine_s
        self._ends_s = self._since_s + (end - self._since_e) * factor if factor else inf

    def _under_way(self, now_e: float) -> EngineTotals:
        """Totals of the current batch until now; the meter has those of earlier batches."""
        running, kv, stall_s = len(self._seats), self._kv, self._stall_s
        since_s = now_e - self._start_e
        if not running:
            return EngineTotals()
        if since_s <= 0.0:
            stall_s += since_s
            return EngineTotals(prefill_s=stall_s, kv_token_s=kv * stall_s, running_s=running * stall_s)
        done = self._steps_done(now_e)
        whole_s = steps_s(done, self._first_s, self._growth_s)
        kv_integral = kv * stall_s + kv_token_s(running, kv, done, whole_s, self._growth_s)
        kv_integral += (kv + running * done) * (since_s - whole_s)
        return EngineTotals(stall_s, since_s, kv_integral, running * (stall_s + since_s), running * done)
