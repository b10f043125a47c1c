"""The staleness buffers of one manager: which entry is in which buffer. They store entries and decide nothing."""

from __future__ import annotations

from typing import Generic

from tailrace.staleness.entry import BufferState, Entry, Key


class Cell(Generic[Key]):
    """All entries that share buffer, version and kind. Sharing one object keeps an entry's cost at two dict items."""

    __slots__ = ("buffer", "keys", "occupied", "version")

    def __init__(self, buffer: Buffer[Key], version: int, occupied: bool) -> None:
        self.buffer = buffer
        self.version = version
        self.occupied = occupied
        self.keys: dict[Key, None] = {}


class Buffer(Generic[Key]):
    """One staleness buffer. Its entries are trained on when the trainer goes from `version` to `version + 1`."""

    __slots__ = ("occupied", "occupied_count", "reserved", "reserved_count", "version")

    def __init__(self, version: int) -> None:
        self.version = version
        self.reserved: dict[int, Cell[Key]] = {}
        self.occupied: dict[int, Cell[Key]] = {}
        self.reserved_count = 0
        self.occupied_count = 0

    def reserved_cell(self, version: int) -> Cell[Key]:
        """The cell of the reserved entries of a version."""
        cell = self.reserved.get(version)
        if cell is None:
            cell = self.reserved[version] = Cell(self, version, False)
        return cell

    def occupied_cell(self, version: int) -> Cell[Key]:
        """The cell of the occupied entries of a version."""
        cell = self.occupied.get(version)
        if cell is None:
            cell = self.occupied[version] = Cell(self, version, True)
        return cell

    def occupied_keys(self) -> list[Key]:
        """Keys of occupied entries, oldest version first, then in order of arrival in this buffer."""
        return [key for version in sorted(self.occupied) for key in self.occupied[version].keys]

    def reserved_keys(self) -> list[Key]:
        """Keys of reserved entries, oldest version first, then in order of arrival in this buffer."""
        return [key for version in sorted(self.reserved) for key in self.reserved[version].keys]

    def entries(self) -> list[Entry[Key]]:
        """All entries, occupied ones first."""
        cells = [self.occupied[version] for version in sorted(self.occupied)]
        cells += [self.reserved[version] for version in sorted(self.reserved)]
        return [Entry(key, cell.version, cell.occupied) for cell in cells for key in cell.keys]

    def state(self, batch_size: int, entries: int) -> BufferState:
        """The state of the buffer; see `BufferState`.

        Args:
            batch_size: keys in a batch.
            entries: size of the buffer: a batch and its surplus.
        """
        if self.occupied_count >= batch_size:
            return BufferState.READY
        full = self.occupied_count + self.reserved_count >= entries
        return BufferState.STUCK if full else BufferState.WAITING
