"""An engine that counts its KV cache in blocks, as vLLM does. Policies see that count, and short contexts fill few blocks."""

from __future__ import annotations

from tailrace.fleetsim.engine import ModelledEngine


class PagedEngine(ModelledEngine):
    """An engine with a block size. `block_tokens` is set once, right after its creation."""

    __slots__ = ("block_tokens",)
    block_tokens: int

    @property
    def kv_share(self) -> float:
        """Share of the KV cache in use, counted in whole blocks."""
        block = self.block_tokens
        if block == 1:
            return super().kv_share
        done = self._steps_done(self._engine_s(self._now_s))
        step = self._step + done
        # A seat has minus the step at which its turn ends, which gives the number of tokens left in the turn.
        blocks = sum(-(-(seat[2].final + seat[0] + step) // block) for seat in self._seats)
        return min(1.0, blocks * block / self._capacity)
