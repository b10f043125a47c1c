"""The version slots of a relay.

    EMPTY, COMPLETE ──reserve──► RETIRING ──leases gone──► RECEIVING ──complete──► COMPLETE
                                    └──too slow──► as before   └──fail──► EMPTY

Invariants, which make torn reads impossible (LAM-9):
* only COMPLETE slots are leased, and a slot is complete only when every chunk of it matched its checksum;
* memory of a slot is written only in RECEIVING, which a slot enters with no lease on it;
* the newest complete version is never the one that makes room.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from enum import StrEnum

from tailrace.paramserver.errors import RelayUnreachable, SlotBusy, VersionNotYet, VersionRetired
from tailrace.paramserver.machine.host import HOST
from tailrace.paramserver.machine.liveness import ProcessId
from tailrace.paramserver.machine.protocol import Machine, Segment, Segments
from tailrace.paramserver.machine.segments import MAX_SLOTS
from tailrace.paramserver.manifest import Manifest
from tailrace.paramserver.relays.leases import Lease, LeaseBook

_LIVENESS_POLL_S = (
    0.25  # a dead reader's connection usually says so at once; this is for one whose socket a child inherited
)


class SlotState(StrEnum):
    """Lifecycle of a slot; owned by `SlotTable`."""

    EMPTY = "empty"
    RECEIVING = "receiving"
    COMPLETE = "complete"
    RETIRING = "retiring"


@dataclass(eq=False)
class Publication:
    """One version in one slot.

    Args:
        manifest: its layout.
        checksums: of the chunks that have arrived and matched, in order.
        failed: it will never be complete.
    """

    manifest: Manifest
    checksums: list[int] = field(default_factory=list)
    failed: bool = False


@dataclass(eq=False)
class Slot:
    """A place for one version. `generation` tells the successive segments of one name apart."""

    index: int
    state: SlotState = SlotState.EMPTY
    segment: Segment | None = None
    generation: int = 0
    publication: Publication | None = None
    leases: LeaseBook = field(default_factory=LeaseBook)

    @property
    def memory(self) -> Segment:
        """Its segment, once it has one."""
        if self.segment is None:
            raise RuntimeError(f"slot {self.index} has no memory yet")
        return self.segment


class SlotTable:
    """All slots of a relay, behind one condition that is notified at every change.

    Args:
        owner: names and cleans up the segments.
        count: number of slots, at least 2: one to read while the other is written.
        machine: its clock and its way of waiting.
    """

    def __init__(self, owner: Segments, count: int, machine: Machine = HOST) -> None:
        if not 2 <= count <= MAX_SLOTS:
            raise ValueError(f"found {count} slots, expected 2 to {MAX_SLOTS}")
        self.changed = machine.condition()
        self.slots = [Slot(index) for index in range(count)]
        self._owner, self._now = owner, machine.now
        self._ids = itertools.count(1)
        self._writing = False
        self._closed = False

    def complete_slots(self) -> list[Slot]:
        """Slots whose version is visible, oldest publication first."""
        with self.changed:
            return sorted((s for s in self.slots if s.state is SlotState.COMPLETE), key=_stamp)

    def versions(self) -> list[tuple[int, int]]:
        """Version and stamp of what is visible, oldest publication first."""
        return [publication.manifest.key for slot in self.complete_slots() if (publication := slot.publication)]

    def status(self) -> dict[str, object]:
        """What is arriving, and who reads what."""
        with self.changed:
            busy = [slot for slot in self.slots if slot.publication is not None]
            return {
                "receiving": {
                    str(p.manifest.version): f"{len(p.checksums)}/{p.manifest.chunk_count} chunks"
                    for slot in busy
                    if (p := slot.publication) and slot.state is SlotState.RECEIVING
                },
                "leases": {
                    str(p.manifest.version): slot.leases.holders()
                    for slot in busy
                    if (p := slot.publication) and slot.leases.held
                },
            }

    # Reading

    def lease(
        self, version: int, *, wait_s: float, hold_s: float, holder: str, process: ProcessId | None
    ) -> tuple[Slot, Lease]:
        """Lease the slot of a version, which is waited for.

        Raises:
            VersionRetired: a newer one has taken its place.
            VersionNotYet: it did not become visible within `wait_s`.
        """
        deadline = self._now() + wait_s
        with self.changed:
            while True:
                self._check_open()
                held = self.complete_slots()
                for slot in held:
                    if slot.publication and slot.publication.manifest.version == version:
                        lease = Lease(next(self._ids), holder, self._now() + hold_s, process)
                        slot.leases.add(lease)
                        return slot, lease
                visible = [v for v, _ in self.versions()]
                if visible and version < visible[-1] and not self._arriving(version):
                    raise VersionRetired(f"version {version} is retired here; found {visible}, lease one of these")
                if not self._wait(deadline):
                    raise VersionNotYet(f"version {version} did not become visible in {wait_s:.3g} s; found {visible}")

    def lease_for_forwarding(self, publication: Publication, holder: str) -> tuple[Slot, Lease] | None:
        """Lease a version that is complete or arriving; None if it is gone. It has no deadline: forwarding has its own."""
        with self.changed:
            for slot in self.slots:
                if slot.publication is publication and slot.state in (SlotState.RECEIVING, SlotState.COMPLETE):
                    lease = Lease(next(self._ids), holder)
                    slot.leases.add(lease)
                    return slot, lease
            return None

    def release(self, slot: Slot, lease: Lease) -> bool:
        """Give a lease back; False if it had been reclaimed."""
        with self.changed:
            kept = slot.leases.remove(lease.id)
            self.changed.notify_all()
            return kept

    def renew(self, slot: Slot, lease: Lease, hold_s: float) -> bool:
        """Move a lease's deadline; False if it had been reclaimed."""
        with self.changed:
            lease.deadline = self._now() + hold_s
            return lease.id in slot.leases.held

    def wanted(self, slot: Slot) -> bool:
        """Whether a writer waits for the slot."""
        with self.changed:
            return slot.state is SlotState.RETIRING

    # Writing

    def reserve(self, manifest: Manifest, timeout_s: float) -> Slot | None:
        """The slot to write a version to, with memory for it; None if it is held already. One writer at a time.

        Raises:
            VersionRetired: newer ones hold every slot.
            SlotBusy: another writer, or readers of the slot, did not finish in time.
            NotEnoughSharedMemory: the version does not fit.
        """
        deadline = self._now() + timeout_s
        with self.changed:
            while self._writing:
                if manifest.key in self.versions():
                    return None
                if not self._wait(deadline):
                    raise SlotBusy(
                        f"version {manifest.version} waited {timeout_s:.3g} s for another version's transfer"
                    )
            if manifest.key in self.versions():
                return None
            slot = self._victim(manifest)
            before, self._writing = slot.state, True
            slot.state = SlotState.RETIRING
            self.changed.notify_all()
            try:
                self._wait_for_leases(slot, manifest, deadline, timeout_s)
            except BaseException:
                slot.state, self._writing = before, False
                self.changed.notify_all()
                raise
            slot.state, slot.publication = SlotState.RECEIVING, None
        try:
            self._provide_memory(slot, manifest.total_bytes)
        except BaseException:
            self._end_writing(slot, SlotState.EMPTY)
            raise
        with self.changed:
            slot.publication = Publication(manifest)
            self.changed.notify_all()
        return slot

    def arrived(self, publication: Publication, checksum: int) -> None:
        """One more chunk is in place and matched."""
        with self.changed:
            publication.checksums.append(checksum)
            self.changed.notify_all()

    def damaged(self, publication: Publication) -> None:
        """The version will not be complete; whoever forwards it stops."""
        with self.changed:
            publication.failed = True
            self.changed.notify_all()

    def complete(self, slot: Slot) -> None:
        """Make the version visible. What it supersedes after a rollback (an equal or higher number) is retired."""
        with self.changed:
            publication = slot.publication
            if publication is None or len(publication.checksums) != publication.manifest.chunk_count:
                raise RuntimeError(f"slot {slot.index} is not complete")
            self._end_writing(slot, SlotState.COMPLETE)
            for other in self.slots:
                old = other.publication
                if other is slot or old is None or other.state is not SlotState.COMPLETE:
                    continue
                if (
                    old.manifest.stamp < publication.manifest.stamp
                    and old.manifest.version >= publication.manifest.version
                ):
                    other.state = SlotState.EMPTY

    def fail(self, slot: Slot) -> None:
        """Forget a version that did not arrive whole."""
        with self.changed:
            if slot.publication is not None:
                slot.publication.failed = True
            self._end_writing(slot, SlotState.EMPTY)

    def close(self) -> None:
        """Wake everybody who waits. Their waits end in RelayUnreachable."""
        with self.changed:
            self._closed = True
            self.changed.notify_all()

    def _victim(self, manifest: Manifest) -> Slot:
        empty = [slot for slot in self.slots if slot.state is SlotState.EMPTY]
        held = self.complete_slots()
        newest = held[-1].publication.manifest if held and held[-1].publication else None
        if newest is not None and manifest.stamp < newest.stamp and (manifest.version >= newest.version or not empty):
            raise VersionRetired(
                f"version {manifest.version} comes after version {newest.version}, which supersedes it"
            )
        if empty:
            return min(empty, key=lambda slot: len(slot.leases.held))
        return held[0]

    def _wait_for_leases(self, slot: Slot, manifest: Manifest, deadline: float, timeout_s: float) -> None:
        while True:
            slot.leases.reclaim_dead(self._now())
            if not slot.leases.held:
                return
            if not self._wait(min(deadline, self._now() + _LIVENESS_POLL_S)) and self._now() >= deadline:
                raise SlotBusy(
                    f"version {manifest.version} waited {timeout_s:.3g} s for the slot of the oldest version, "
                    f"which is leased by {slot.leases.holders()}; use more slots or shorter leases"
                )

    def _provide_memory(self, slot: Slot, nbytes: int) -> None:
        if slot.segment is not None and slot.segment.size >= nbytes:
            return
        if slot.segment is not None:
            slot.segment.close()
            slot.segment = None
        slot.generation += 1
        slot.segment = self._owner.create(slot.index, nbytes)

    def _end_writing(self, slot: Slot, state: SlotState) -> None:
        with self.changed:
            slot.state, self._writing = state, False
            self.changed.notify_all()

    def _arriving(self, version: int) -> bool:
        return any(
            slot.state is SlotState.RECEIVING and slot.publication and slot.publication.manifest.version == version
            for slot in self.slots
        )

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


def _stamp(slot: Slot) -> int:
    return slot.publication.manifest.stamp if slot.publication else -1
