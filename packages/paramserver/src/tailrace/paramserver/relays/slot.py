"""One slot of a relay: its memory, its version, its state, and the leases on it. It is rewritten only when it has none.

EMPTY, PARTIAL, COMPLETE, SEALED ──reserve──► RETIRING ──leases gone──► RECEIVING ──all there──► COMPLETE or SEALED
                                                 └──too slow──► as before   └──cut off──► PARTIAL ──resumed──► RECEIVING
SEALED ──reveal──► COMPLETE          COMPLETE, SEALED, PARTIAL ──retired, superseded, too old──► EMPTY
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

from tailrace.paramserver.errors import ProtocolError
from tailrace.paramserver.machine.protocol import Condition, MemorySegment, Segments
from tailrace.paramserver.manifest import Manifest
from tailrace.processes import ProcessId

# The memory of a relay's slots, and the piece of it that a publisher on the same host may fill.
#
# There is one block more than slots. A publisher borrows it, copies a version in, and offers that: the relay hashes it where
# it lies, and the block changes places with that of the slot which the version takes. That one is borrowed next.
#
# Memory that a publisher has mapped is written by nobody else any more: to a slot that needs it, or to another publisher, new
# memory goes in its place. So a publisher whose connection broke still holds what it published, whole.


@dataclass(eq=False)
class Block:
    """A segment of a relay, once it has one.

    Args:
        index: the number in its name.
        segment: the memory.
        generation: tells the successive segments of one name apart.
        borrower: the connection whose publisher has it mapped for writing, or None.
    """

    index: int
    segment: MemorySegment | None = None
    generation: int = 0
    borrower: object | None = None

    @property
    def size(self) -> int:
        """Bytes of its memory; 0 without one."""
        return 0 if self.segment is None else self.segment.size

    def provide(self, owner: Segments, nbytes: int) -> MemorySegment:
        """Memory of at least this size that no one else writes.

        Raises:
            NotEnoughSharedMemory: it does not fit.
        """
        if self.segment is not None and self.segment.size >= nbytes and self.borrower is None:
            return self.segment
        self.discard(owner)
        self.generation += 1
        self.segment = owner.create(self.index, nbytes)
        return self.segment

    def discard(self, owner: Segments) -> None:
        """Release the memory. Processes that have mapped it keep it."""
        if self.segment is not None:
            self.segment.close()
            owner.remove(self.index)
        self.segment = self.borrower = None


@dataclass(frozen=True, slots=True)
class Loan:
    """Memory that a publisher may fill.

    Args:
        id: the id with which it is offered.
        segment: the memory.
        generation: see `Block`.
    """

    id: int
    segment: MemorySegment
    generation: int


class Staging:
    """The block that may be borrowed. One publisher at a time has it.

    Args:
        owner: names the segments.
        block: the one beside those of the slots.
        changed: the slot table's condition.
    """

    def __init__(self, owner: Segments, block: Block, changed: Condition) -> None:
        self._owner, self._block, self._changed = owner, block, changed
        self._ids = itertools.count(1)
        self._lent: int | None = None
        self._borrower: object | None = None

    @property
    def size(self) -> int:
        """Bytes of the block. Under the condition."""
        return self._block.size

    def lend(
        self, borrower: object, nbytes: int, *, recycled: bool, making: Callable[[], None] = lambda: None
    ) -> Loan | None:
        """Let a publisher fill the block; None if it cannot be had at once.

        Args:
            borrower: its connection.
            nbytes: the bytes that it needs.
            recycled: only memory that is there already.
            making: called before new memory is made, which takes a while.

        Raises:
            NotEnoughSharedMemory: there is none, and no more fits.
        """
        with self._changed:
            block = self._block
            fits = block.segment is not None and block.segment.size >= nbytes and block.borrower in (None, borrower)
            if self._borrower is not None or (recycled and not fits):
                return None
            self._borrower, self._lent = borrower, None
        try:
            if not fits:
                making()
                block.discard(self._owner)
                block.provide(self._owner, nbytes)
        except BaseException:
            with self._changed:
                self._borrower = None
            raise
        with self._changed:
            if block.segment is None:
                raise RuntimeError("memory that was provided is there")
            block.borrower, self._lent = borrower, next(self._ids)
            return Loan(self._lent, block.segment, block.generation)

    def end(self, borrower: object) -> None:
        """End a publisher's loans with its connection. Memory that it filled and did not offer is released."""
        with self._changed:
            if self._borrower is borrower and self._lent is not None:
                self._borrower = self._lent = None
                self._block.discard(self._owner)

    def give_back(self, borrower: object, loan: int) -> None:
        """A publisher does not need the block after all.

        Raises:
            ProtocolError: it does not have it.
        """
        with self._changed:
            if self._borrower is not borrower or self._lent != loan:
                raise ProtocolError(f"found the loan {loan}, expected one of this connection")
            self._borrower = self._lent = None

    def is_lent(self, loan: int) -> bool:
        """Whether a loan of this number can be offered."""
        with self._changed:
            return self._lent == loan

    def exchange(self, loan: int, nbytes: int, block: Block) -> Block:
        """The block that was lent, with a version of this size in it, for a slot's own. Under the condition.

        Raises:
            ProtocolError: there is no such loan, or it is smaller.
        """
        segment = self._block.segment
        if self._lent == loan and (segment is None or segment.size < nbytes):
            raise ProtocolError(f"found a version of {nbytes} bytes in the loan {loan}, which is smaller")
        if self._lent != loan:
            raise ProtocolError(f"found the loan {loan}, which was given back or is none")
        lent, self._block = self._block, block
        self._lent = self._borrower = None
        return lent


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

    def hold(self, now: float) -> int:
        """How firmly the slot is held: 0 not at all or by dead leases, 1 by leases that yield, 2 by others."""
        return max((1 if lease.yields else 2 for lease in self.held.values() if not lease.dead(now)), default=0)

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
