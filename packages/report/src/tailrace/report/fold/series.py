"""Values sampled over a run of unknown length, in bounded memory."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from itertools import pairwise
from operator import mul

MOST = 2048
_MOMENT_S = 1e-9  # the weight of a sample that no time has passed before


class Series:
    """Several values, sampled together at moments that never decrease. One column holds their means over time.

    A sample stands for the time since the one before. When there are too many columns, neighbours are merged, and every later
    column holds twice as many samples.

    Args:
        rows: how many values a sample has.
        most: columns, an even number.
    """

    def __init__(self, rows: int, most: int = MOST) -> None:
        self.rows, self._most = rows, most
        self.ends_s: list[float] = []
        self._columns: list[array[float]] = []
        self._per_column = 1
        self._sum = [0.0] * rows
        self._count, self._weight = 0, 0.0
        self._last_s = 0.0

    def add(self, at_s: float, values: Iterable[float]) -> None:
        """A sample."""
        weight = max(at_s - self._last_s, _MOMENT_S)
        self._last_s = at_s
        if self._per_column == 1:
            self._append(array("d", values))
        else:
            self._sum = [held + weight * value for held, value in zip(self._sum, values, strict=True)]
            self._count, self._weight = self._count + 1, self._weight + weight
            if self._count == self._per_column:
                self._flush()
        if len(self._columns) >= self._most:
            self._merge()

    def widen(self) -> None:
        """Samples have one value more from now on, behind the others. In earlier columns it is 0."""
        self.rows += 1
        self._sum.append(0.0)
        for column in self._columns:
            column.append(0.0)

    def close(self) -> None:
        """No sample follows: the last column may hold fewer than the others."""
        if self._count:
            self._flush()

    def row(self, index: int) -> list[float]:
        """One value in every column."""
        return [column[index] for column in self._columns]

    def column(self, place: int) -> Sequence[float]:
        """The means that end at `ends_s[place]`."""
        return self._columns[place]

    def coarser(self, most: int) -> Series:
        """The same in at most so many columns, neighbours merged until each stands for its share of the time.

        So no column has the rate of two samples that followed one another at once.
        """
        whole, count = Series(self.rows, self._most), len(self.ends_s)
        least_s = self.ends_s[-1] / most * (1 - 1e-9) if count else 0.0
        firsts, begin_s = [0], 0.0
        for place, end_s in enumerate(self.ends_s):
            if end_s - begin_s >= least_s and self.ends_s[-1] - end_s >= least_s and place + 1 < count:
                firsts.append(place + 1)
                begin_s = end_s
        for first, after in pairwise([*firsts, count] if count else []):
            whole.ends_s.append(self.ends_s[after - 1])
            whole._columns.append(self._mean(first, after - first))
        return whole

    def _flush(self) -> None:
        self._append(array("d", (held / self._weight for held in self._sum)))
        self._sum, self._count, self._weight = [0.0] * self.rows, 0, 0.0

    def _append(self, column: array[float]) -> None:
        self._columns.append(column)
        self.ends_s.append(self._last_s)

    def _merge(self) -> None:
        pairs = range(0, len(self._columns), 2)
        self._columns = [self._mean(first, 2) for first in pairs]
        self.ends_s = self.ends_s[1::2]
        self._per_column *= 2

    def _mean(self, first: int, count: int) -> array[float]:
        columns, ends_s = self._columns[first : first + count], self.ends_s[first : first + count]
        if len(columns) == 1:
            return columns[0]
        begins_s = [self.ends_s[first - 1] if first else 0.0, *ends_s]
        weights = [max(end_s - begin_s, _MOMENT_S) for begin_s, end_s in zip(begins_s, ends_s, strict=False)]
        whole = sum(weights)
        return array("d", (sum(map(mul, weights, values)) / whole for values in zip(*columns, strict=True)))
