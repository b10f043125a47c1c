"""The staleness manager: it bounds the staleness of training data by reservation (StaleFlow, section 4)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Generic

from tailrace.staleness.buffers import BufferState, Cell, Entry, Key, Slots
from tailrace.staleness.errors import (
    DuplicateError,
    LimitError,
    NotReadyError,
    RedundantError,
    StalenessBoundExceeded,
    UnknownBufferError,
    UnknownEntryError,
    VersionError,
    plain_version,
    whole,
)
from tailrace.staleness.restore import broken, place_all, read_state
from tailrace.staleness.tentative import Tentative


class StalenessManager(Generic[Key]):
    """Virtual staleness buffers, one per batch to come.

    An entry of version V may be trained on up to the trainer's version V + bound. From `reserve` on, every entry has a place
    in a buffer that is consumed in time. So no key that `consume` returns is older than the bound, in whatever order keys
    complete. At most (bound + 1) * (batch_size + surplus) keys are tracked. Every operation takes O(bound) steps, however
    many entries there are; `consume` also takes a step for each key that it returns. Not thread-safe.

    Args:
        bound: eta of StaleFlow: most versions by which the trainer may be ahead of its training data, 0 or more.
        batch_size: keys in a batch, 1 or more. A key is a trajectory, or a group where groups are used.
        version: the trainer's version.
        surplus: entries of each buffer beyond a batch (batch-level redundancy, section 4.3).

    Raises:
        LimitError: a value is out of its range.
    """

    def __init__(self, bound: int = 1, batch_size: int = 1, version: int = 0, surplus: int = 0) -> None:
        self._bound = whole("bound", bound)
        self._batch_size = whole("batch_size", batch_size, least=1)
        self._surplus = whole("surplus", surplus)
        self._slots: Slots[Key] = Slots(bound, batch_size, surplus, whole("version", version))
        self._changes = 0

    @property
    def bound(self) -> int:
        """Most versions by which the trainer may be ahead of its training data."""
        return self._bound

    @property
    def batch_size(self) -> int:
        """Keys in a batch."""
        return self._batch_size

    @property
    def surplus_size(self) -> int:
        """Entries of each buffer beyond a batch."""
        return self._surplus

    @property
    def version(self) -> int:
        """The trainer's version, which is also the version of the earliest unconsumed buffer."""
        return self._slots.version

    @property
    def capacity(self) -> int:
        """Entries of all unconsumed buffers, hence most keys that can be tracked at once (section 4.2, Discussions)."""
        return (self._bound + 1) * (self._batch_size + self._surplus)

    @property
    def changes(self) -> int:
        """Number of operations that changed the manager so far; a fork is valid for one such number."""
        return self._changes

    def __len__(self) -> int:
        return len(self._slots.where)

    def __contains__(self, key: object) -> bool:
        return key in self._slots.where

    def occupied(self, key: Key) -> bool | None:
        """Whether a key's entry is occupied (True) or reserved (False); None if it has none."""
        cell = self._slots.where.get(key)
        return None if cell is None else cell.occupied

    def can_reserve(self, version: int) -> bool:
        """Whether one more trajectory may start at a version: a simulated reserve (the discriminator of section 4.2).

        Changes nothing. False also for a version newer than the trainer's.

        Raises:
            VersionError: the version is no whole number.
        """
        slots = self._slots
        if type(version) is not int:
            version = plain_version(version)
        if not 0 <= version <= slots.version:
            return False
        deadline = version + self._bound - slots.version
        return deadline >= 0 and slots.open & ((2 << deadline) - 1) != 0

    def reserve(self, key: Key, version: int) -> int:
        """Start a trajectory: reserve an empty entry in the latest buffer in which it may be trained on. No entry moves.

        Returns:
            The version of that buffer.

        Raises:
            StalenessBoundExceeded: no such buffer has an empty entry.
            VersionError: the version is no whole number, negative or newer than the trainer's.
            DuplicateError: the key has an entry already.
        """
        slots = self._slots
        if type(version) is not int:
            version = plain_version(version)
        if not 0 <= version <= slots.version:
            raise VersionError(
                f"cannot reserve {key!r}: found version {version!r}, which is "
                f"{'newer than the trainer' + chr(39) + 's' if version > 0 else 'negative'}, expected 0 to {slots.version}; "
                f"{self.describe()}"
            )
        if key in slots.where:
            raise DuplicateError(
                f"cannot reserve {key!r}: found an entry of it, expected a new key; {self.describe(key)}"
            )
        deadline = version + self._bound - slots.version
        legal = slots.open & ((2 << deadline) - 1) if deadline >= 0 else 0
        if not legal:
            raise StalenessBoundExceeded(
                f"cannot reserve {key!r} at version {version}: found no empty entry in buffers {slots.version} to "
                f"{version + self._bound}, expected one; {self.describe()}"
            )
        slot = legal.bit_length() - 1
        buffer = slots.buffers[slot]
        cell = buffer.reserved_cell(version)
        cell.keys[key] = None
        slots.where[key] = cell
        slots.holds[deadline] |= 1 << slot
        buffer.reserved_count += 1
        if buffer.reserved_count + buffer.occupied_count == slots.size:
            slots.open &= ~(1 << slot)
        self._changes += 1
        return buffer.version

    def occupy(self, key: Key) -> int:
        """Complete a rewarded trajectory: its reserved entry is deleted, and it occupies the earliest empty entry.

        In between, reserved entries move to later buffers to fill the hole, as far as their versions allow (Figure 7, right).

        Returns:
            The version of the buffer in which it would now be trained on.

        Raises:
            UnknownEntryError: the key has no entry, or its entry is occupied already.
            RedundantError: its buffer is complete without it (see `surplus`).
        """
        slots = self._slots
        cell = slots.where.get(key)
        if cell is None or cell.occupied:
            cell = self._find(key, occupied=False)
        origin = cell.buffer
        if origin.occupied_count >= self._batch_size:
            raise RedundantError(
                f"cannot occupy {key!r}: found its buffer {origin.version} complete without it, expected an abort; "
                f"{self.describe(key)}"
            )
        slots.delete_reserved(key, cell)
        hole = slots.fill_hole(origin.version - slots.version)
        slots.buffers[hole].reserved_count -= 1
        opened = slots.open | 1 << hole
        first = opened & -opened
        slot = first.bit_length() - 1
        buffer = slots.buffers[slot]
        target = buffer.occupied_cell(cell.version)
        target.keys[key] = None
        slots.where[key] = target
        buffer.occupied_count += 1
        slots.filled |= first
        if buffer.occupied_count == self._batch_size:
            slots.ready |= first
            opened &= ~first
        elif buffer.occupied_count + buffer.reserved_count == slots.size:
            opened &= ~first
        slots.open = opened
        if self._surplus and slot != hole:
            slots.rescue(hole)
        self._changes += 1
        return buffer.version

    def abort(self, key: Key) -> None:
        """Drop a reserved entry. Earlier reserved entries then move later, and later occupied ones forward.

        Raises:
            UnknownEntryError: the key has no reserved entry.
        """
        slots = self._slots
        cell = self._find(key, occupied=False)
        del slots.where[key]
        slots.delete_reserved(key, cell)
        hole = cell.buffer.version - slots.version
        if slots.ready >> hole & 1:
            cell.buffer.reserved_count -= 1  # it was redundant, so its place is no longer an entry
        else:
            hole = slots.fill_hole(hole)
            slots.buffers[hole].reserved_count -= 1
            slots.settle(hole)
        self._changes += 1

    def filter(self, key: Key) -> None:
        """Drop an occupied entry. An occupied entry of a later buffer moves forward into its place (Figure 8c).

        Raises:
            UnknownEntryError: the key has no occupied entry.
        """
        slots = self._slots
        cell = self._find(key, occupied=True)
        del slots.where[key]
        del cell.keys[key]
        cell.buffer.occupied_count -= 1
        hole = cell.buffer.version - slots.version
        slots.refresh(hole)
        slots.settle(hole)
        self._changes += 1

    def ready(self) -> bool:
        """Whether the earliest buffer may be consumed."""
        return bool(self._slots.ready & 1)

    def consume(self) -> list[Key]:
        """Retire the earliest buffer and drop its redundant entries; the trainer's version rises by one.

        Returns:
            A batch of keys, oldest version first.

        Raises:
            NotReadyError: the buffer is not ready.
        """
        if not self._slots.ready & 1:
            raise NotReadyError(
                f"cannot consume buffer {self.version}: found {self._slots.buffers[0].occupied_count} occupied entries, "
                f"expected {self._batch_size}; {self.describe()}"
            )
        self._changes += 1
        return self._slots.retire()

    def state(self, buffer_version: int) -> BufferState:
        """The state of one buffer. A buffer too late for any reservation now is waiting.

        Raises:
            UnknownBufferError: the buffer was consumed.
        """
        slot = self._slot(buffer_version)
        if slot > self._bound:
            return BufferState.WAITING
        return self._slots.buffers[slot].state(self._batch_size, self._slots.size)

    def entries(self, buffer_version: int) -> list[Entry[Key]]:
        """The entries of one buffer: occupied ones first, then by version, then in order of arrival there.

        Raises:
            UnknownBufferError: the buffer was consumed.
        """
        slot = self._slot(buffer_version)
        return self._slots.buffers[slot].entries() if slot <= self._bound else []

    def surplus(self) -> list[Key]:
        """Reserved entries of ready buffers, which came too late. `consume` drops those of the buffer that it retires."""
        if not self._slots.ready or not self._surplus:
            return []
        return [
            key
            for slot, buffer in enumerate(self._slots.buffers)
            if self._slots.ready >> slot & 1
            for key in buffer.reserved_keys()
        ]

    def delayed(self) -> list[Key]:
        """Reserved entries of the earliest buffer that alone keep it from being ready: later buffers could fill their places.

        As few as that takes, the oldest version first. Empty if the buffer is ready, or if not enough is occupied yet (section
        4.3: training is stalled waiting for delayed trajectories). After an `abort` of each, the buffer is ready.
        """
        first, *later = self._slots.buffers
        missing = self._batch_size - first.occupied_count
        if missing <= 0 or sum([buffer.occupied_count for buffer in later]) < missing:
            return []
        return list(first.reserved_keys())[:missing]

    def fork(self) -> Tentative[Key]:
        """An overlay in which reserves can be tried. Takes O(bound), since a reserve moves no entry."""
        slots = self._slots
        empty = tuple(
            slots.size - buffer.occupied_count - buffer.reserved_count if slots.open >> slot & 1 else 0
            for slot, buffer in enumerate(slots.buffers)
        )
        return Tentative(self, empty)

    def reset(self, version: int, entries: Iterable[Entry[Key]]) -> list[Key]:
        """Set the version and place existing entries anew, after a crash or a rollback.

        Complete entries are placed before those in flight, older before newer. All of this manager's own entries find a place
        again, except redundant ones.

        Returns:
            Keys without a place: those that can no longer be trained on within the bound, and those of versions newer than
            the trainer's.

        Raises:
            LimitError: the version is not a whole number of at least 0.
            DuplicateError: a key occurs twice.
        """
        whole("version", version)
        listed = list(entries)
        keys: set[Key] = set()
        for entry in listed:
            if entry.key in keys:
                raise DuplicateError(f"cannot reset: found {entry.key!r} twice, expected each key once")
            keys.add(entry.key)
        fresh: StalenessManager[Key] = StalenessManager(self._bound, self._batch_size, version, self._surplus)
        refused = place_all(fresh, listed)
        if self._surplus and any(entry.occupied and entry.key in refused for entry in listed):
            # Redundant entries took places of complete ones. Place complete ones first; only those in flight may be refused.
            fresh = StalenessManager(self._bound, self._batch_size, version, self._surplus)
            refused = place_all(fresh, listed, complete_first=True)
        self._slots = fresh._slots
        self._changes += 1
        return [entry.key for entry in listed if entry.key in refused]

    def to_state(self) -> dict[str, Any]:
        """The whole state as plain data, which JSON can carry if the keys are strings or integers."""
        return {
            "version": self.version,
            "bound": self._bound,
            "batch_size": self._batch_size,
            "surplus": self._surplus,
            "buffers": [
                [[entry.key, entry.version, entry.occupied] for entry in buffer.entries()]
                for buffer in self._slots.buffers
            ],
        }

    @classmethod
    def from_state(cls, state: Any) -> StalenessManager[Key]:
        """A manager with a state that `to_state` returned.

        Raises:
            StateError: no manager could have written this state.
        """
        try:
            manager = cls(state["bound"], state["batch_size"], state["version"], state["surplus"])
        except (KeyError, TypeError, LimitError) as error:
            raise broken(f"{type(error).__name__}: {error}") from error
        read_state(manager._slots, state)
        return manager

    def describe(self, key: Key | None = None) -> str:
        """The state in one line, for an error message or a log; with a key, also the place of its entry."""
        fill = ", ".join(
            f"{buffer.version}: {buffer.occupied_count} occupied + {buffer.reserved_count} reserved of {self._slots.size} "
            f"({buffer.state(self._batch_size, self._slots.size)})"
            for buffer in self._slots.buffers
        )
        cell = self._slots.where.get(key) if key is not None else None
        own = ""
        if cell is not None:
            kind = "occupied" if cell.occupied else "reserved"
            own = f"; {key!r} is {kind} in buffer {cell.buffer.version} with version {cell.version}"
        return f"trainer at version {self.version}, bound {self._bound}, buffers {{{fill}}}{own}"

    def _find(self, key: Key, *, occupied: bool) -> Cell[Key]:
        cell = self._slots.where.get(key)
        if cell is None or cell.occupied is not occupied:
            found = "no entry" if cell is None else "an occupied one" if cell.occupied else "a reserved one"
            raise UnknownEntryError(
                f"{key!r}: found {found}, expected {'an occupied' if occupied else 'a reserved'} entry; {self.describe(key)}"
            )
        return cell

    def _slot(self, buffer_version: int) -> int:
        slot = buffer_version - self.version
        if slot < 0:
            raise UnknownBufferError(
                f"found buffer {buffer_version}, which was consumed, expected {self.version} or later; {self.describe()}"
            )
        return slot
