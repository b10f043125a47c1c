"""Leases: the right to read a slot. A slot is rewritten only when it has no lease."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

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
