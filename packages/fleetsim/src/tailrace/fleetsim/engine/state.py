"""The work and the state of an engine, and its current batch in closed form."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from math import inf, sqrt
from typing import NamedTuple, Protocol

from tailrace.fleetsim.errors import EngineError, WorkError


@dataclass(slots=True, eq=False)
class Work:
    """A trajectory to generate from its beginning or to resume, up to the end of a turn: an environment answers outside.

    Args:
        id: the trajectory's id.
        prompt_tokens: number of prompt tokens, at least 1.
        done_tokens: number of response tokens generated earlier.
        response_tokens: number of response tokens at the end of the turn.
        cached_tokens: tokens of its context that are in the engine's cache already.
    An engine that gives work back (`Engine.remove`, `Engine.clear`) writes its progress into `done_tokens`, so that the same
    object can resume elsewhere.
    """

    id: str
    prompt_tokens: int
    done_tokens: int
    response_tokens: int
    cached_tokens: int = 0
    # Used by the engine alone, set by `begin`: context tokens in the cache at its next prefill and at the end, and response
    # tokens left to generate when it last joined the queue.
    cached: int = field(init=False, repr=False)
    final: int = field(init=False, repr=False)
    left: int = field(init=False, repr=False)

    def begin(self) -> int:
        """Make it ready for a queue. Returns its tokens at the end, including the prompt.

        Raises:
            WorkError: it has no prompt, or no response token left.
        """
        prompt, done, total = self.prompt_tokens, self.done_tokens, self.response_tokens
        if prompt < 1 or not 0 <= done < total:
            raise WorkError(
                f"trajectory {self.id}: found {prompt} prompt tokens and {done} of {total} response tokens done, expected at "
                "least 1, and fewer done than there are"
            )
        self.final = final = prompt + total
        self.left = total - done
        self.cached = self.cached_tokens
        return final


# The closed form of decode steps. A batch of `n` trajectories that holds `K` tokens takes `fixed(n) + c * K` for its next
# step, and `K` grows by `n` with each. So `m` steps take `m * (first_s + growth_s * (m - 1))` with
# `first_s = fixed(n) + c * K` and `growth_s = c * n / 2`.


def steps_s(steps: int, first_s: float, growth_s: float) -> float:
    """Total seconds of the next `steps` steps."""
    return steps * (first_s + growth_s * (steps - 1))


def kv_token_s(running: int, kv: int, steps: int, seconds: float, growth_s: float) -> float:
    """Integral of the tokens in the KV cache over `steps` steps, in token-seconds.

    It is the sum of `(kv + running * k) * (first_s + 2 * growth_s * k)` for `k` below `steps`: the mean number of tokens times
    the total time, plus their covariance, since later steps have more tokens and take longer.

    Args:
        running: number of running trajectories.
        kv: tokens in the KV cache at the start.
        steps: number of steps.
        seconds: total seconds of the steps.
        growth_s: half the seconds by which each step is longer than the one before.
    """
    return (kv + 0.5 * running * (steps - 1)) * seconds + running * growth_s * steps * (steps * steps - 1) / 6.0


def steps_within(seconds: float, first_s: float, growth_s: float, most: int) -> int:
    """Number of complete steps after `seconds`, at most `most`: the inverse of `steps_s`, rounded down.

    `first_s >= growth_s` holds for every batch, because each of its trajectories has at least one token.
    """
    if seconds <= 0.0 or most <= 0:
        return 0
    linear = first_s - growth_s
    steps = min(int(2.0 * seconds / (linear + sqrt(linear * linear + 4.0 * growth_s * seconds))), most)
    # The root is rounded, but the result must agree exactly with `steps_s`, or a step would be counted twice.
    while steps < most and steps_s(steps + 1, first_s, growth_s) <= seconds:
        steps += 1
    while steps and steps_s(steps, first_s, growth_s) > seconds:
        steps -= 1
    return steps


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


class DecodeTime(Protocol):
    """How long a decode step takes: `fixed_s(running) + per_token_s * tokens in the KV cache`."""

    @property
    def per_token_s(self) -> float:
        """Seconds that a step takes for each token in the KV cache."""

    @property
    def kv_capacity_tokens(self) -> int:
        """Tokens that fit into the KV cache."""

    def fixed_s(self, running: int, /) -> float:
        """Seconds of a step of `running` trajectories that do not depend on the KV cache; above 0."""


class PrefillTime(Protocol):
    """How long a prompt takes before its first decode step."""

    def seconds(self, tokens: int, cached: int = 0, /) -> float:
        """Seconds to fill the cache with a context of `tokens`, of which `cached` are there already."""


class EngineTotals(NamedTuple):
    """Integrals over the time in which trajectories were on the engine's devices."""

    prefill_s: float = 0.0
    decode_s: float = 0.0
    kv_token_s: float = 0.0
    running_s: float = 0.0
    tokens: int = 0


class EngineMeter:
    """Totals on the engine's own clock, which stands still while the engine hangs, and on the wall clock.

    Between two changes of speed, wall time is engine time times a factor, so only the totals at the last change are kept.
    The methods take the totals of the current batch so far, which are not in the meter yet.
    """

    __slots__ = ("_engine", "_wall", "decode_s", "kv_token_s", "prefill_s", "running_s", "tokens")

    def __init__(self) -> None:
        self.prefill_s = self.decode_s = self.kv_token_s = self.running_s = 0.0
        self.tokens = 0
        self._engine = self._wall = EngineTotals()

    def _total(self, under_way: EngineTotals) -> EngineTotals:
        return EngineTotals(
            self.prefill_s + under_way.prefill_s,
            self.decode_s + under_way.decode_s,
            self.kv_token_s + under_way.kv_token_s,
            self.running_s + under_way.running_s,
            self.tokens + under_way.tokens,
        )

    def wall(self, under_way: EngineTotals, wall_per_engine_s: float) -> EngineTotals:
        """Totals in wall seconds."""
        engine, engine_then, wall_then = self._total(under_way), self._engine, self._wall
        return EngineTotals(
            wall_then.prefill_s + (engine.prefill_s - engine_then.prefill_s) * wall_per_engine_s,
            wall_then.decode_s + (engine.decode_s - engine_then.decode_s) * wall_per_engine_s,
            wall_then.kv_token_s + (engine.kv_token_s - engine_then.kv_token_s) * wall_per_engine_s,
            wall_then.running_s + (engine.running_s - engine_then.running_s) * wall_per_engine_s,
            engine.tokens,
        )

    def change_speed(self, under_way: EngineTotals, wall_per_engine_s: float) -> None:
        """Note that the factor changes; until now it was `wall_per_engine_s`."""
        self._wall = self.wall(under_way, wall_per_engine_s)
        self._engine = self._total(under_way)

    def restart(self, before: EngineTotals, after: EngineTotals) -> None:
        """Count the current batch from a new start: its totals until now were `before` and are now `after`.

        Its tokens until now are added to the meter, since the new start is after them.
        """
        self.prefill_s += before.prefill_s - after.prefill_s
        self.decode_s += before.decode_s - after.decode_s
        self.kv_token_s += before.kv_token_s - after.kv_token_s
        self.running_s += before.running_s - after.running_s
        self.tokens += before.tokens
