"""The memory of a relay's slots, and the piece of it that a publisher on the same host may fill.

There is one block more than slots. A publisher borrows it, copies a version in, and offers that: the relay hashes it where
it lies, and the block changes places with that of the slot which the version takes. That one is borrowed next.

Memory that a publisher has mapped is written by nobody else any more: to a slot that needs it, or to another publisher, goes
new memory in its place. So a publisher whose connection broke still holds what it published, whole.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

from tailrace.paramserver.errors import ProtocolError
from tailrace.paramserver.machine.protocol import Condition, MemorySegment, Segments


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
