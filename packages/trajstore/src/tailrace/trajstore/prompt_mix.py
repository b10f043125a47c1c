"""Several prompt pools as one stream, each with its share."""

from __future__ import annotations

import dataclasses
import itertools
import math
import random
from collections.abc import Sequence

from tailrace.trajstore.prompt_pool import Prompt, PromptPool, PromptStream, check_seed

MOST_SLOTS = 1_000
_EXACT = 1e-6
_KEPT_BLOCKS = 2  # a pipeline reads the current block and, around its end, the next


class MixOrder:
    """Which pool each prompt of a mix comes from. It needs no rows, so who knows the shares and the seed knows it too.

    The stream is made of blocks. In each, every pool has its share of the prompts, exactly if at most 1,000 of them can show
    it, and at least one.

    Args:
        shares: one for each pool, above 0; they need not add up to 1.
        shuffle_seed: seed of the order within blocks; None spreads each pool evenly.

    Raises:
        ValueError: there is no share, or one is not above 0, or infinite.
        TypeError: the seed is no whole number.
    """

    def __init__(self, shares: Sequence[float], *, shuffle_seed: int | None = None) -> None:
        if not shares or not all(0 < share < math.inf for share in shares):
            raise ValueError(f"found the shares {list(shares)}, expected at least one, and each finite and above 0")
        check_seed(shuffle_seed)
        self._seed, self._counts = shuffle_seed, _counts(shares)
        slots = [((place + 0.5) / count, pool) for pool, count in enumerate(self._counts) for place in range(count)]
        self._slots = [pool for _, pool in sorted(slots)]
        self._blocks: dict[int, list[tuple[int, int]]] = {}

    def pool(self, index: int) -> int:
        """The number of the pool that the prompt at an index comes from."""
        return self.place(index)[0]

    def place(self, index: int) -> tuple[int, int]:
        """The pool of the prompt at an index, and the prompt's index in the stream of that pool."""
        if len(self._counts) == 1:
            return 0, index
        block, place = divmod(index, len(self._slots))
        pool, before = self._block(block)[place]
        return pool, block * self._counts[pool] + before

    def _block(self, number: int) -> list[tuple[int, int]]:
        """For each place of a block, its pool and how many prompts of this pool come before it in the block."""
        block = self._blocks.get(number)
        if block is None:
            order = list(self._slots)
            if self._seed is not None:
                random.Random(f"{self._seed}/mix/{number}").shuffle(order)
            counts = [0] * len(self._counts)
            block = []
            for pool in order:
                block.append((pool, counts[pool]))
                counts[pool] += 1
            # Replace the dictionary, so that other threads read either the old or the new state.
            kept = list(self._blocks.items())[1 - _KEPT_BLOCKS :]
            self._blocks = dict([*kept, (number, block)])
        return block


class PromptMix(PromptStream):
    """Prompts of several pools by index, as an endless stream in the order of `MixOrder`. Each pool has epochs of its own.

    The prompt at an index depends only on the pools, the shares and the seed, so the stream continues unchanged after a crash.

    Args:
        pools: the pools.
        shares: one for each, above 0; they need not add up to 1.
        shuffle_seed: seed of the order within blocks; None spreads each pool evenly.

    Raises:
        ValueError: there are no pools, not as many shares, or a share is not above 0, or infinite.
        TypeError: the seed is no whole number.
    """

    def __init__(
        self, pools: Sequence[PromptPool], shares: Sequence[float], *, shuffle_seed: int | None = None
    ) -> None:
        if not pools or len(pools) != len(shares):
            raise ValueError(
                f"found {len(pools)} pools and the shares {list(shares)}, expected a share above 0 for each pool"
            )
        self._pools, self._order = list(pools), MixOrder(shares, shuffle_seed=shuffle_seed)
        self._first_rows = list(itertools.accumulate((len(pool) for pool in pools), initial=0))

    def __len__(self) -> int:
        """Number of rows of all pools. The stream itself is endless."""
        return self._first_rows[-1]

    def _at(self, index: int) -> Prompt:
        # The row counts through all pools, the epoch is that of the prompt's own pool.
        pool, place = self._order.place(index)
        found = self._pools[pool][place]
        return dataclasses.replace(found, index=index, row=self._first_rows[pool] + found.row)


def _counts(shares: Sequence[float]) -> list[int]:
    """Prompts of each pool in a block: the fewest that have these shares, or the nearest of 1,000."""
    parts = [share / sum(shares) for share in shares]
    for slots in range(len(parts), MOST_SLOTS + 1):
        exact = [part * slots for part in parts]
        counts = [round(count) for count in exact]
        if min(counts) and all(abs(count - found) < _EXACT for count, found in zip(exact, counts, strict=True)):
            return counts
    return [max(1, round(part * MOST_SLOTS)) for part in parts]
