"""Values sampled over a run of unknown length, in bounded memory."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence

MOST = 2048


class Series:
    """Several values, sampled together at moments that never decrease. One column holds the means of one sample or more.

    When there are too many columns, neighbours are merged, and every later column holds twice as many samples.

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
        self._count = 0
        self._last_s = 0.0

    def add(self, at_s: float, values: Iterable[float]) -> None:
        """A sample."""
        self._last_s = at_s
        if self._per_column == 1:
            self._append(array("d", values))
        else:
            self._sum = [held + value for held, value in zip(self._sum, values, strict=True)]
            self._count += 1
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

    def between(self, begin_s: float, end_s: float) -> list[Sequence[float]]:
        """The columns that end in a stretch of time, its begin left out."""
        columns = zip(self.ends_s, self._columns, strict=True)
        return [column for at_s, column in columns if begin_s < at_s <= end_s]

    def coarser(self, most: int) -> Series:
        """The same in at most so many columns, neighbours merged evenly."""
        stride = -(-len(self._columns) // most) if self._columns else 1
        merged = Series(self.rows, self._most)
        for first in range(0, len(self._columns), stride):
            part = self._columns[first : first + stride]
            merged.ends_s.append(self.ends_s[min(first + stride, len(self.ends_s)) - 1])
            merged._columns.append(_mean(part))
        return merged

    def _flush(self) -> None:
        self._append(array("d", (held / self._count for held in self._sum)))
        self._sum, self._count = [0.0] * self.rows, 0

    def _append(self, column: array[float]) -> None:
        self._columns.append(column)
        self.ends_s.append(self._last_s)

    def _merge(self) -> None:
        pairs = range(0, len(self._columns), 2)
        self._columns = [_mean(self._columns[first : first + 2]) for first in pairs]
        self.ends_s = self.ends_s[1::2]
        self._per_column *= 2


def _mean(columns: Sequence[array[float]]) -> array[float]:
    if len(columns) == 1:
        return columns[0]
    return array("d", (sum(values) / len(columns) for values in zip(*columns, strict=True)))
