"""An engine that counts its KV cache in blocks, as vLLM does: policies see that count, and short contexts fill few of them."""

from __future__ import annotations

from tailrace.fleetsim.engine import Engine


class PagedEngine(Engine):
    """An engine with a block size. `block_tokens` is set once, right after it was made."""

    __slots__ = ("block_tokens",)
    block_tokens: int

    @property
    def kv_share(self) -> float:
        """How full the KV cache is, in whole blocks."""
        block = self.block_tokens
        if block == 1:
            return super().kv_share
        done = self._steps_done(self._engine_s(self._now_s))
        step = self._step + done
        # A seat holds minus the step at which its turn ends: so many tokens before the turn's last one.
        blocks = sum(-(-(seat[2].final + seat[0] + step) // block) for seat in self._seats)
        return min(1.0, blocks * block / self._capacity)
