"""Deletion and movement of entries (StaleFlow, section 4.2 and Figure 7, right), in O(bound) steps.

Buffers are addressed by slot: 0 is the earliest unconsumed one, `bound` the latest. An entry of version V may sit in slots up
to its deadline, V + bound - trainer's version. Sets of slots are bit masks, so that a search over buffers is one operation.

What holds between operations, and what breaks if it does not:

* I1: no empty entry lies in a buffer before an occupied one. Else a batch is complete later than it could be.
* I2: no reserved entry lies before an empty entry that it may move to. Else `can_reserve` refuses what would fit.
* I3: no reserved entry of a buffer that is not ready lies before an occupied one whose place it may take. It follows from
  I2, and is why one move of an occupied entry settles everything: the hole that it leaves draws no entry of a buffer that
  is not ready, so no new hole opens.

A ready buffer has no empty entries, whatever it holds; reserved entries that are left in it are redundant.
"""

from __future__ import annotations

from typing import Generic

from tailrace.staleness.buffers import Buffer, Cell
from tailrace.staleness.entry import Key


class Slots(Generic[Key]):
    """Unconsumed buffers, where every key is, and the masks that make both quick to search."""

    __slots__ = ("batch_size", "bound", "buffers", "filled", "holds", "open", "ready", "size", "version", "where")

    def __init__(self, bound: int, batch_size: int, surplus: int, version: int) -> None:
        self.bound = bound
        self.batch_size = batch_size
        self.size = batch_size + surplus
        self.clear(version)

    def clear(self, version: int) -> None:
        """Empty buffers, from a version on."""
        self.version = version
        self.buffers: list[Buffer[Key]] = [Buffer(version + slot) for slot in range(self.bound + 1)]
        self.where: dict[Key, Cell[Key]] = {}
        self.open = (2 << self.bound) - 1  # slots with an empty entry
        self.ready = 0  # slots that are ready
        self.filled = 0  # slots with an occupied entry
        self.holds = [0] * (self.bound + 1)  # by deadline: slots with reserved entries of it

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
        """Forget a reserved entry; counts and masks of empty entries stay as they were."""
        del cell.keys[key]
        if not cell.keys:
            self.holds[cell.version + self.bound - self.version] &= ~(1 << (cell.buffer.version - self.version))

    def fill_hole(self, hole: int) -> int:
        """Move reserved entries later until the hole has come as far forward as it can.

        The earliest reserved entry that may sit at the hole moves there, then the earliest that may sit at its former place,
        and so on. Of one buffer the oldest version moves, and of one version what came last. Entries of ready buffers stay:
        they would leave no empty entry behind.

        Returns:
            The slot of the hole that is left. Counts are as if nothing had been deleted there yet.
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
            # Longer deadlines than the old hole were searched: nothing of them lies before `source`.
            top, hole = hole, source

    def shift_reserved(self, source: int, target: int, deadline: int) -> None:
        """Move the last reserved entry of a deadline from one slot to another, leaving counts alone."""
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
        """Restore I1 and I2 after an entry left a slot where reserved ones had their chance already."""
        last = self.filled.bit_length() - 1
        if last > hole:
            self.advance_occupied(last, hole)
            hole = last
        self.refresh(hole)
        self.rescue(hole)

    def advance_occupied(self, source: int, target: int) -> None:
        """Move an occupied entry forward: of the oldest version in its buffer, what came last."""
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
        """Give empty entries of a slot to redundant ones of earlier, ready buffers."""
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
        """Take the earliest buffer away, with the redundant entries that are left in it; the version becomes one higher."""
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
        # What expired with the buffer lay in it; every other deadline comes one slot nearer.
        self.holds = [slots >> 1 for slots in self.holds[1:]] + [0]
        return batch
