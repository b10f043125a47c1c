"""Staleness buffers, their entries, and how entries leave and move (StaleFlow, section 4.2 and Figure 7, right).

Deletion and movement take O(bound) steps.
Buffers are addressed by slot: 0 is the earliest unconsumed one, `bound` the latest. An entry of version V may be in slots up
to its deadline, V + bound - trainer's version. Sets of slots are bit masks, so that a search over buffers is one operation.
Invariants between operations:
* I1: no buffer with an empty entry lies before one with an occupied entry. Otherwise a batch completes later than it could.
* I2: no reserved entry lies before an empty entry that it may move to. Otherwise `can_reserve` refuses a key that would fit.
* I3: no reserved entry of a buffer that is not ready lies before an occupied one whose place it may take. This follows from
  I2. Because of it, one move of an occupied entry restores I1 and I2: no entry of a buffer that is not ready may move into
  the hole that it leaves, so no new hole opens.
A ready buffer counts as having no empty entries; reserved entries left in it are redundant.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
KeyIn = TypeVar("KeyIn", bound=Hashable, contravariant=True)  # for protocols that only take keys


class BufferState(StrEnum):
    """Lifecycle of a staleness buffer (StaleFlow, section 4.2)."""

    WAITING = "waiting"
    """It has empty entries."""
    READY = "ready"
    """A batch of its entries is occupied, so it may be consumed."""
    STUCK = "stuck"
    """It has no empty entry, and waits for reserved ones to complete."""


@dataclass(frozen=True, slots=True)
class Entry(Generic[Key]):
    """One entry of a staleness buffer.

    Args:
        key: the trajectory, or the group where groups are used.
        version: the oldest version that it may have been generated with (V_traj).
        occupied: whether it is complete (occupied) or in flight (reserved).
    """

    key: Key
    version: int
    occupied: bool


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


class Slots(Generic[Key]):
    """The unconsumed buffers, the place of every key, and bit masks that make both fast to search."""

    __slots__ = ("batch_size", "bound", "buffers", "filled", "holds", "open", "ready", "size", "version", "where")

    def __init__(self, bound: int, batch_size: int, surplus: int, version: int) -> None:
        self.bound = bound
        self.batch_size = batch_size
        self.size = batch_size + surplus
        self.clear(version)

    def clear(self, version: int) -> None:
        """Replace all buffers by empty ones, from a version on."""
        self.version = version
        self.buffers: list[Buffer[Key]] = [Buffer(version + slot) for slot in range(self.bound + 1)]
        self.where: dict[Key, Cell[Key]] = {}
        self.open = (2 << self.bound) - 1  # slots with an empty entry
        self.ready = 0  # slots that are ready
        self.filled = 0  # slots with an occupied entry
        self.holds = [0] * (self.bound + 1)  # by deadline: slots that have reserved entries of that deadline

    def refresh(self, slot: int) -> None:
        """Set a slot's bits from its counts."""
        buffer = self.buffers[slot]
        bit = 1 << slot
        complete = buffer.occupied_count >= self.batch_size
        room = not complete and buffer.occupied_count + buffer.reserved_count < self.size
        self.ready = self.ready | bit if complete else self.ready & ~bit
        self.open = self.open | bit if room else self.open & ~bit
        self.filled = self.filled | bit if buffer.occupied_count else self.filled & ~bit

    def put(self, key: Key, version: int, occupied: bool, slot: int) -> None:
        """Add an entry."""
        buffer = self.buffers[slot]
        if occupied:
            cell = buffer.occupied_cell(version)
            buffer.occupied_count += 1
        else:
            cell = buffer.reserved_cell(version)
            buffer.reserved_count += 1
            self.holds[version + self.bound - self.version] |= 1 << slot
        cell.keys[key] = None
        self.where[key] = cell
        self.refresh(slot)

    def delete_reserved(self, key: Key, cell: Cell[Key]) -> None:
        """Delete a reserved entry without updating counts and masks of empty entries."""
        del cell.keys[key]
        if not cell.keys:
            self.holds[cell.version + self.bound - self.version] &= ~(1 << (cell.buffer.version - self.version))

    def fill_hole(self, hole: int) -> int:
        """Move reserved entries later until the hole is as early as it can be.

        The earliest reserved entry that may move to the hole does so, then the earliest that may move to that one's former
        place, and so on. Within a buffer the oldest version moves, and within a version the last to arrive. Entries of ready
        buffers stay, since they would leave no empty entry behind.

        Returns:
            The slot of the remaining hole. Counts do not yet show that an entry there was deleted.
        """
        holds = self.holds
        waiting = ~self.ready
        top = self.bound + 1
        while True:
            below = ((1 << hole) - 1) & waiting
            found = deadline = 0
            for candidate in range(hole, top):
                slots = holds[candidate] & below
                if slots:
                    found = slots & -slots
                    deadline = candidate
                    below &= found - 1
                    if not below:
                        break
            if not found:
                return hole
            source = found.bit_length() - 1
            self.shift_reserved(source, hole, deadline)
            # Deadlines beyond the old hole were searched already: none of their entries lies before `source`.
            top, hole = hole, source

    def shift_reserved(self, source: int, target: int, deadline: int) -> None:
        """Move the last reserved entry of a deadline from one slot to another, without updating counts."""
        version = deadline + self.version - self.bound
        origin = self.buffers[source].reserved[version]
        key, _ = origin.keys.popitem()
        if not origin.keys:
            self.holds[deadline] &= ~(1 << source)
        cell = self.buffers[target].reserved_cell(version)
        cell.keys[key] = None
        self.where[key] = cell
        self.holds[deadline] |= 1 << target

    def settle(self, hole: int) -> None:
        """Restore I1 and I2 after an entry left a slot that no reserved entry can move to any more."""
        last = self.filled.bit_length() - 1
        if last > hole:
            self.advance_occupied(last, hole)
            hole = last
        self.refresh(hole)
        self.rescue(hole)

    def advance_occupied(self, source: int, target: int) -> None:
        """Move an occupied entry forward: the last to arrive of the oldest version in its buffer."""
        origin = self.buffers[source]
        version = min(version for version, cell in origin.occupied.items() if cell.keys)
        key, _ = origin.occupied[version].keys.popitem()
        origin.occupied_count -= 1
        cell = self.buffers[target].occupied_cell(version)
        cell.keys[key] = None
        self.where[key] = cell
        self.buffers[target].occupied_count += 1
        self.refresh(source)
        self.refresh(target)

    def rescue(self, slot: int) -> None:
        """Move redundant entries of earlier, ready buffers to empty entries of a slot."""
        bit = 1 << slot
        while self.open & bit:
            below = (bit - 1) & self.ready
            found = deadline = 0
            for candidate in range(slot, self.bound + 1):
                slots = self.holds[candidate] & below
                if slots:
                    found = slots & -slots
                    deadline = candidate
                    below &= found - 1
            if not found:
                return
            source = found.bit_length() - 1
            self.shift_reserved(source, slot, deadline)
            self.buffers[source].reserved_count -= 1
            self.buffers[slot].reserved_count += 1
            self.refresh(slot)

    def retire(self) -> list[Key]:
        """Remove the earliest buffer with its redundant entries; the version rises by one. Returns its occupied keys."""
        buffer = self.buffers.pop(0)
        batch = buffer.occupied_keys()
        for key in batch:
            del self.where[key]
        for key in buffer.reserved_keys():
            del self.where[key]
        self.version += 1
        self.buffers.append(Buffer(self.version + self.bound))
        self.open = self.open >> 1 | 1 << self.bound
        self.ready >>= 1
        self.filled >>= 1
        # Entries whose deadline was this buffer were in it; every other deadline comes one slot nearer.
        self.holds = [slots >> 1 for slots in self.holds[1:]] + [0]
        return batch
