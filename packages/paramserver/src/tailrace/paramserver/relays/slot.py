"""One slot of a relay: its version, its state, and the leases on it. It is rewritten only when it has none.

EMPTY, PARTIAL, COMPLETE, SEALED ──reserve──► RETIRING ──leases gone──► RECEIVING ──all there──► COMPLETE or SEALED
                                                 └──too slow──► as before   └──cut off──► PARTIAL ──resumed──► RECEIVING
SEALED ──reveal──► COMPLETE          COMPLETE, SEALED, PARTIAL ──retired, superseded, too old──► EMPTY
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

from tailrace.paramserver.machine.protocol import MemorySegment
from tailrace.paramserver.manifest import Manifest
from tailrace.paramserver.relays.memory import Block
from tailrace.processes import ProcessId


@dataclass(eq=False)
class Lease:
    """One reader's lease on a slot.

    Args:
        id: unique within the relay.
        holder: the reader's name, for messages.
        deadline: clock time after which a writer may take the slot anyway.
        process: the reader's process where its pid means something to the relay.
        yields: whether it gives way to a writer that finds no other slot, so that nobody waits for it.
    """

    id: int
    holder: str
    deadline: float = math.inf
    process: ProcessId | None = None
    yields: bool = False

    def dead(self, now: float) -> bool:
        """Whether a writer need not respect it any more."""
        return now >= self.deadline or (self.process is not None and not self.process.alive())


@dataclass
class LeaseBook:
    """The leases on one slot."""

    held: dict[int, Lease] = field(default_factory=dict)

    def add(self, lease: Lease) -> None:
        """Grant it."""
        self.held[lease.id] = lease

    def remove(self, lease_id: int) -> bool:
        """Give it back; False if it was reclaimed before."""
        return self.held.pop(lease_id, None) is not None

    def reclaim_dead(self, now: float) -> None:
        """Forget the leases whose deadline has passed or whose process is gone."""
        for lease in [lease for lease in self.held.values() if lease.dead(now)]:
            del self.held[lease.id]

    @property
    def binding(self) -> bool:
        """Whether a writer has to wait for any of them."""
        return any(not lease.yields for lease in self.held.values())

    @property
    def hold(self) -> int:
        """How firmly the slot is held: 0 not at all, 1 by leases that yield, 2 by others."""
        return 2 if self.binding else int(bool(self.held))

    def yield_all(self) -> None:
        """Forget the leases that yield: a writer takes the slot."""
        for lease in [lease for lease in self.held.values() if lease.yields]:
            del self.held[lease.id]

    def holders(self) -> str:
        """The holders of leases for whom a writer waits, for a message."""
        return ", ".join(sorted(lease.holder for lease in self.held.values() if not lease.yields))


class SlotState(StrEnum):
    """Lifecycle of a slot; owned by `SlotTable`. Only a COMPLETE slot's version is visible."""

    EMPTY = "empty"
    RECEIVING = "receiving"
    PARTIAL = "partial"
    SEALED = "sealed"
    COMPLETE = "complete"
    RETIRING = "retiring"


@dataclass(eq=False)
class Publication:
    """One version in one slot.

    Args:
        manifest: the version's manifest.
        sealed: whether it must not be visible yet, even once it is complete.
        in_place: its bytes were copied into the slot's memory before it was offered, and are only to be checked.
        checksums: checksums of the chunks that have arrived and matched, by index.
        progress_at: clock time at which data of it last arrived.
        keep_until: clock time at which it is forgotten if it is still partial then.
    """

    manifest: Manifest
    sealed: bool = False
    in_place: bool = False
    checksums: dict[int, int] = field(default_factory=dict)
    progress_at: float = 0.0
    keep_until: float = 0.0

    def missing(self) -> list[int]:
        """Chunks that have not arrived, ascending."""
        return [index for index in range(self.manifest.chunk_count) if index not in self.checksums]

    def in_order(self) -> list[int]:
        """The checksums of all chunks; for a version that is whole."""
        return [self.checksums[index] for index in range(self.manifest.chunk_count)]

    def extent(self) -> str:
        """How much of it is there, for a message."""
        return f"{len(self.checksums)}/{self.manifest.chunk_count} chunks"


@dataclass(eq=False)
class Slot:
    """A place for one version, in the memory of its block. `abort` ends the transfer that writes it."""

    index: int
    block: Block
    state: SlotState = SlotState.EMPTY
    publication: Publication | None = None
    leases: LeaseBook = field(default_factory=LeaseBook)
    abort: Callable[[], None] | None = None

    @property
    def memory(self) -> MemorySegment:
        """Its segment, once it has one."""
        if self.block.segment is None:
            raise RuntimeError(f"slot {self.index} has no memory yet")
        return self.block.segment

    @property
    def generation(self) -> int:
        """The generation of its memory."""
        return self.block.generation

    @property
    def stamp(self) -> int:
        """The stamp of its version; -1 without a version."""
        return self.publication.manifest.stamp if self.publication else -1

    @property
    def version(self) -> int:
        """Its version's number, -1 without one."""
        return self.publication.manifest.version if self.publication else -1
