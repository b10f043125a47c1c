"""The slots of a relay, their lock, and the clock, which reading and writing share."""

from __future__ import annotations

import itertools

from tailrace.paramserver.errors import RelayUnreachable
from tailrace.paramserver.machine.host import HOST
from tailrace.paramserver.machine.protocol import HostInterface, Segments
from tailrace.paramserver.machine.segments import MAX_SLOTS
from tailrace.paramserver.relays.slot import Block, Lease, Slot, SlotState, Staging

PARTIAL_S = 120.0
TAKEOVER_S = 1.0
HELD = (SlotState.COMPLETE, SlotState.SEALED)
PASSED_ON = (SlotState.COMPLETE, SlotState.SEALED, SlotState.RECEIVING)


class Shelf:
    """All slots of a relay, behind one condition that is notified at every change.

    Args:
        owner: names and cleans up the segments.
        count: number of slots, at least 2: one to read while the other is written.
        machine: its clock and its way of waiting.
        partial_s: how long what arrived of an interrupted version is kept.
        takeover_s: how long a transfer may stand still before another sender of the same version, or of a newer one,
            takes its place.
    """

    def __init__(
        self,
        owner: Segments,
        count: int,
        machine: HostInterface = HOST,
        *,
        partial_s: float = PARTIAL_S,
        takeover_s: float = TAKEOVER_S,
    ) -> None:
        if not 2 <= count <= MAX_SLOTS:
            raise ValueError(f"found {count} slots, expected 2 to {MAX_SLOTS}")
        self.changed = machine.condition()
        self.slots = [Slot(index, Block(index)) for index in range(count)]
        self.staging = Staging(owner, Block(count), self.changed)
        self.takeovers = 0
        self._owner, self._now = owner, machine.now
        self._partial_s, self._takeover_s = partial_s, takeover_s
        self._retired: dict[tuple[int, int], None] = {}
        self._bases: dict[str, tuple[Slot, Lease]] = {}  # by the relay that acknowledged it
        self._lease_ids = itertools.count(1)
        self._closed = False

    def complete_slots(self) -> list[Slot]:
        """Slots whose version is visible, oldest publication first."""
        with self.changed:
            return sorted((s for s in self.slots if s.state is SlotState.COMPLETE), key=lambda slot: slot.stamp)

    def versions(self) -> list[tuple[int, int]]:
        """Version and stamp of all visible publications, oldest first."""
        return [publication.manifest.key for slot in self.complete_slots() if (publication := slot.publication)]

    def memory(self) -> dict[str, int]:
        """Copies of weights in memory, at most one more than there are slots, and their bytes."""
        with self.changed:
            sizes = [*(slot.block.size for slot in self.slots), self.staging.size]
        return {"copies": sum(1 for size in sizes if size), "bytes": sum(sizes)}

    def sealed(self) -> list[tuple[int, int]]:
        """Version and stamp of all publications that are whole and sealed."""
        with self.changed:
            held = [slot.publication for slot in self.slots if slot.state is SlotState.SEALED]
            return [publication.manifest.key for publication in held if publication]

    def newest_stamp(self) -> int:
        """The largest stamp of anything that is or was here, visible or not; -1 without one."""
        with self.changed:
            stamps = [slot.stamp for slot in self.slots] + [stamp for _, stamp in self._retired]
            return max(stamps, default=-1)

    def retired(self) -> list[tuple[int, int]]:
        """Publications that were retired by name, oldest order first."""
        with self.changed:
            return list(self._retired)

    def status(self) -> dict[str, object]:
        """The versions that are arriving or sealed, and the readers' leases."""
        with self.changed:
            self._drop_stale()
            busy = [(slot, p) for slot in self.slots if (p := slot.publication) is not None]

            def extents(state: SlotState) -> dict[str, str]:
                return {str(p.manifest.version): p.extent() for slot, p in busy if slot.state is state}

            return {
                "receiving": extents(SlotState.RECEIVING),
                "partial": extents(SlotState.PARTIAL),
                "sealed": [p.manifest.version for slot, p in busy if slot.state is SlotState.SEALED],
                "leases": {str(p.manifest.version): slot.leases.holders() for slot, p in busy if slot.leases.binding},
            }

    def close(self) -> None:
        """Wake everybody who waits. Their waits end in RelayUnreachable."""
        with self.changed:
            self._closed = True
            self.changed.notify_all()

    def _drop_stale(self) -> None:
        for slot in self.slots:
            if slot.state is SlotState.PARTIAL and slot.publication and self._now() >= slot.publication.keep_until:
                slot.state = SlotState.EMPTY

    def _publications(self, version: int, stamp: int | None) -> list[Slot]:
        """The slots of a version, in whatever state; with a stamp, of that publication alone."""
        return [
            slot
            for slot in self.slots
            if slot.state is not SlotState.EMPTY and slot.version == version and stamp in (None, slot.stamp)
        ]

    def _held_text(self) -> str:
        return str([version for version, _ in self.versions()])

    def _wait(self, deadline: float) -> bool:
        """Wait for a change; False when the deadline has passed."""
        remaining = deadline - self._now()
        if remaining <= 0:
            return False
        self.changed.wait(remaining)
        self._check_open()
        return True

    def _check_open(self) -> None:
        if self._closed:
            raise RelayUnreachable("the relay is closing")
