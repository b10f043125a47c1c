"""The staleness manager as StaleFlow describes it: one flat list, each rule an explicit scan. For tests and benchmarks.

`StalenessManager` must give the same result for every key; see there for the operations.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tailrace.staleness.errors import NotReadyError, RedundantError, StalenessBoundExceeded, UnknownEntryError


@dataclass
class Row:
    """One entry and the buffer that it is in."""

    key: Any
    version: int
    buffer: int
    occupied: bool


class ReferenceManager:
    """The manager as a list of rows, in the order in which they came to their present buffer."""

    def __init__(self, bound: int, batch_size: int, version: int = 0, surplus: int = 0) -> None:
        self.bound = bound
        self.batch_size = batch_size
        self.version = version
        self.surplus_size = surplus
        self.rows: list[Row] = []

    def buffers(self) -> range:
        """Versions of the unconsumed buffers."""
        return range(self.version, self.version + self.bound + 1)

    def inside(self, buffer: int, *, occupied: bool | None = None) -> list[Row]:
        """The rows in a buffer."""
        return [row for row in self.rows if row.buffer == buffer and occupied in (None, row.occupied)]

    def complete(self, buffer: int) -> bool:
        """Whether the buffer is ready: a batch of its entries is occupied."""
        return len(self.inside(buffer, occupied=True)) == self.batch_size

    def empty(self, buffer: int) -> bool:
        """Whether the buffer has an empty entry. A ready buffer has none."""
        return not self.complete(buffer) and len(self.inside(buffer)) < self.batch_size + self.surplus_size

    def row(self, key: Any, *, occupied: bool) -> Row:
        """The row of a key."""
        for row in self.rows:
            if row.key == key and row.occupied is occupied:
                return row
        raise UnknownEntryError(f"no such entry: {key!r}")

    def move(self, row: Row, buffer: int) -> None:
        """Move a row to another buffer, where it is the last to arrive."""
        assert row.version + self.bound >= buffer >= self.version
        self.rows.remove(row)
        row.buffer = buffer
        self.rows.append(row)

    def can_reserve(self, version: int) -> bool:
        """Simulate a reserve."""
        return any(self.empty(buffer) for buffer in self.buffers() if buffer <= version + self.bound)

    def reserve(self, key: Any, version: int) -> int:
        """Scan backwards from buffer V + bound for an empty entry and reserve it."""
        for buffer in reversed(self.buffers()):
            if buffer <= version + self.bound and self.empty(buffer):
                self.rows.append(Row(key, version, buffer, False))
                return buffer
        raise StalenessBoundExceeded(f"no empty entry for {key!r}")

    def movable(self, hole: int, *, of_ready: bool) -> Row | None:
        """The earliest reserved entry that may move to a hole; within a buffer the oldest version, then the last to arrive."""
        best = None
        for row in self.rows:
            if row.occupied or row.buffer >= hole or row.version + self.bound < hole:
                continue
            if self.complete(row.buffer) is not of_ready:
                continue
            if best is None or (row.buffer, row.version) <= (best.buffer, best.version):
                best = row
        return best

    def chain(self, hole: int) -> None:
        """Fill a hole in buffer order: B moves to A's place, C to B's, and so on."""
        while (row := self.movable(hole, of_ready=False)) is not None:
            source = row.buffer
            self.move(row, hole)
            hole = source

    def occupy(self, key: Any) -> int:
        """Delete the reserved entry, move others, occupy the earliest empty entry."""
        row = self.row(key, occupied=False)
        if self.complete(row.buffer):
            raise RedundantError(f"{key!r} is redundant")
        self.rows.remove(row)
        self.chain(row.buffer)
        buffer = next(buffer for buffer in self.buffers() if self.empty(buffer))
        assert buffer <= row.version + self.bound
        self.rows.append(Row(key, row.version, buffer, True))
        self.settle()
        return buffer

    def abort(self, key: Any) -> None:
        """Drop a reserved entry."""
        row = self.row(key, occupied=False)
        redundant = self.complete(row.buffer)
        self.rows.remove(row)
        if not redundant:
            self.chain(row.buffer)
        self.settle()

    def filter(self, key: Any) -> None:
        """Drop an occupied entry."""
        self.rows.remove(self.row(key, occupied=True))
        self.settle()

    def settle(self) -> None:
        """Move occupied entries forward into empty ones, then reserved ones later into empty ones, until nothing moves."""
        while True:
            for buffer in self.buffers():
                later = [row for row in self.rows if row.occupied and row.buffer > buffer]
                if later and self.empty(buffer):
                    last = max(row.buffer for row in later)
                    oldest = min(row.version for row in later if row.buffer == last)
                    self.move([row for row in later if (row.buffer, row.version) == (last, oldest)][-1], buffer)
                    break
            else:
                for buffer in self.buffers():
                    if not self.empty(buffer):
                        continue
                    row = self.movable(buffer, of_ready=False) or self.movable(buffer, of_ready=True)
                    if row is not None:
                        self.move(row, buffer)
                        break
                else:
                    return

    def ready(self) -> bool:
        """Whether the earliest buffer is ready."""
        return self.complete(self.version)

    def consume(self) -> list[Any]:
        """Retire the earliest buffer."""
        if not self.ready():
            raise NotReadyError(f"buffer {self.version} is not ready")
        batch = [row.key for row in sorted(self.inside(self.version, occupied=True), key=lambda row: row.version)]
        self.rows = [row for row in self.rows if row.buffer != self.version]
        self.version += 1
        return batch

    def surplus(self) -> list[Any]:
        """Reserved entries of ready buffers."""
        return [
            row.key
            for buffer in self.buffers()
            if self.complete(buffer)
            for row in sorted(self.inside(buffer, occupied=False), key=lambda row: row.version)
        ]

    def entries(self, buffer: int) -> list[tuple[Any, int, bool]]:
        """Entries of a buffer: occupied ones first, then by version, then by arrival."""
        rows = sorted(self.inside(buffer), key=lambda row: (not row.occupied, row.version))
        return [(row.key, row.version, row.occupied) for row in rows]
