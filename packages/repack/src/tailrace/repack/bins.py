"""Bins ordered by load, for best fit under a limit on requests in about sqrt(n) steps; a plain scan takes n.

The bins are in ascending order of load, in short blocks. Each block stores the fewest requests of its bins, so a search from
the fullest bin downwards skips every block in which no bin has room for the requests.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence

# (load, minus the rank, requests): among equal loads the lowest rank sorts last, so a search downwards finds it first.
Bin = tuple[float, int, int]

_BLOCK = 32


class LoadOrderedBins:
    """Bins in ascending order of load.

    Args:
        bins: the bins in ascending order of load.
    """

    def __init__(self, bins: Sequence[Bin]) -> None:
        self._blocks = [list(bins[start : start + _BLOCK]) for start in range(0, len(bins), _BLOCK)]
        self._fewest = [_fewest(block) for block in self._blocks]

    def add(self, entry: Bin) -> None:
        """Add a bin."""
        position = self._position(entry)
        if position == len(self._blocks):
            if not self._blocks:
                self._blocks.append([])
                self._fewest.append(entry[2])
            position = len(self._blocks) - 1
        block = self._blocks[position]
        insort(block, entry)
        if len(block) > 2 * _BLOCK:
            self._blocks[position : position + 1] = [block[:_BLOCK], block[_BLOCK:]]
            self._fewest[position : position + 1] = [_fewest(block[:_BLOCK]), _fewest(block[_BLOCK:])]
        else:
            self._fewest[position] = min(self._fewest[position], entry[2])

    def remove(self, entry: Bin) -> bool:
        """Remove a bin. Returns whether it was there."""
        position = self._position(entry)
        if position == len(self._blocks):
            return False
        block = self._blocks[position]
        index = bisect_left(block, entry)
        if index == len(block) or block[index] != entry:
            return False
        del block[index]
        if not block:
            self._drop(position)
        elif entry[2] == self._fewest[position]:
            self._fewest[position] = _fewest(block)
        return True

    def drop_above(self, limit: float, extra: float) -> None:
        """Forget every bin whose load plus `extra` exceeds `limit`."""
        blocks = self._blocks
        while blocks and blocks[-1][-1][0] + extra > limit:
            block = blocks[-1]
            fewest_may_change = False
            while block and block[-1][0] + extra > limit:
                fewest_may_change |= block.pop()[2] == self._fewest[-1]
            if not block:
                self._drop(len(blocks) - 1)
            elif fewest_may_change:
                self._fewest[-1] = _fewest(block)

    def fullest(self, requests: int) -> Bin | None:
        """The bin of greatest load among those that hold at most this many requests."""
        for position in range(len(self._blocks) - 1, -1, -1):
            if self._fewest[position] <= requests:
                return next(entry for entry in reversed(self._blocks[position]) if entry[2] <= requests)
        return None

    def _position(self, entry: Bin) -> int:
        """The only block that may hold the bin: the first whose greatest bin is not below it."""
        low, high = 0, len(self._blocks)
        while low < high:
            middle = (low + high) // 2
            if self._blocks[middle][-1] < entry:
                low = middle + 1
            else:
                high = middle
        return low

    def _drop(self, position: int) -> None:
        del self._blocks[position], self._fewest[position]


def _fewest(block: Sequence[Bin]) -> int:
    return min(entry[2] for entry in block)
