"""An engine's totals, as integrals over time."""

from __future__ import annotations

from typing import NamedTuple


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
