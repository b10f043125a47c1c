"""One slot of a relay: its version and its state.

EMPTY, PARTIAL, COMPLETE, SEALED ──reserve──► RETIRING ──leases gone──► RECEIVING ──all there──► COMPLETE or SEALED
                                                 └──too slow──► as before   └──cut off──► PARTIAL ──resumed──► RECEIVING
SEALED ──reveal──► COMPLETE          COMPLETE, SEALED, PARTIAL ──retired, superseded, too old──► EMPTY
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

from tailrace.paramserver.machine.protocol import MemorySegment
from tailrace.paramserver.manifest import Manifest
from tailrace.paramserver.relays.leases import LeaseBook
from tailrace.paramserver.relays.memory import Block


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
