"""The version slots of a relay (see `slot` for their states).

Invariants, which make torn reads impossible (LAM-9):
* only COMPLETE slots are leased to readers, and a slot is complete only when every chunk of it matched its checksum;
* memory of a slot is written only in RECEIVING, which a slot enters with no lease on it, or, if it was interrupted,
  with leases of forwarders only, which read chunks that have arrived; those are not written again;
* the newest complete version is never the one that makes room.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

from tailrace.paramserver.errors import RelayUnreachable, SlotBusy, VersionNotYet, VersionRetired
from tailrace.paramserver.machine.host import HOST
from tailrace.paramserver.machine.liveness import ProcessId
from tailrace.paramserver.machine.protocol import Machine, Segments
from tailrace.paramserver.machine.segments import MAX_SLOTS
from tailrace.paramserver.manifest import Manifest
from tailrace.paramserver.relays.leases import Lease
from tailrace.paramserver.relays.room import make_room
from tailrace.paramserver.relays.slot import Publication, Slot, SlotState

__all__ = ["Publication", "Slot", "SlotState", "SlotTable"]

_LIVENESS_POLL_S = (
    0.25  # a dead reader's connection usually says so at once; this is for one whose socket a child inherited
)
_HELD = (SlotState.COMPLETE, SlotState.SEALED)
_PASSED_ON = (SlotState.COMPLETE, SlotState.SEALED, SlotState.RECEIVING)
_TOMBSTONES = 256
PARTIAL_S = 120.0
TAKEOVER_S = 1.0


class SlotTable:
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
        machine: Machine = HOST,
        *,
        partial_s: float = PARTIAL_S,
        takeover_s: float = TAKEOVER_S,
    ) -> None:
        if not 2 <= count <= MAX_SLOTS:
            raise ValueError(f"found {count} slots, expected 2 to {MAX_SLOTS}")
        self.changed = machine.condition()
        self.slots = [Slot(index) for index in range(count)]
        self.takeovers = 0
        self._owner, self._now = owner, machine.now
        self._partial_s, self._takeover_s = partial_s, takeover_s
        self._ids = itertools.count(1)
        self._writer: Slot | None = None
        self._retired: dict[tuple[int, int], None] = {}
        self._closed = False

    def complete_slots(self) -> list[Slot]:
        """Slots whose version is visible, oldest publication first."""
        with self.changed:
            return sorted((s for s in self.slots if s.state is SlotState.COMPLETE), key=lambda slot: slot.stamp)

    def versions(self) -> list[tuple[int, int]]:
        """Version and stamp of what is visible, oldest publication first."""
        return [publication.manifest.key for slot in self.complete_slots() if (publication := slot.publication)]

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
        """What is arriving, what is sealed, and who reads what."""
        with self.changed:
            self._drop_stale()
            busy = [(slot, p) for slot in self.slots if (p := slot.publication) is not None]

            def extents(state: SlotState) -> dict[str, str]:
                return {str(p.manifest.version): p.extent() for slot, p in busy if slot.state is state}

            return {
                "receiving": extents(SlotState.RECEIVING),
                "partial": extents(SlotState.PARTIAL),
                "sealed": [p.manifest.version for slot, p in busy if slot.state is SlotState.SEALED],
                "leases": {str(p.manifest.version): slot.leases.holders() for slot, p in busy if slot.leases.held},
            }

    # Reading

    def lease(
        self,
        version: int | None,
        *,
        wait_s: float,
        hold_s: float,
        holder: str,
        process: ProcessId | None,
        arriving: bool = False,
    ) -> tuple[Slot, Lease]:
        """Lease the slot of a version, which is waited for.

        Args:
            version: its number; None for the newest that is there.
            arriving: for a relay that passes it on: it may be arriving or sealed.

        Raises:
            VersionRetired: a newer one has taken its place.
            VersionNotYet: it did not become visible within `wait_s`.
        """
        deadline = self._now() + wait_s
        states = _PASSED_ON if arriving else (SlotState.COMPLETE,)
        with self.changed:
            while True:
                self._check_open()
                found = [
                    slot
                    for slot in self.slots
                    if slot.state in states and slot.publication and version in (None, slot.version)
                ]
                if found:
                    slot = max(found, key=lambda slot: slot.stamp)
                    return slot, self._grant(slot, holder, hold_s, process)
                if version is not None:
                    self._check_not_retired(version)
                if not self._wait(deadline):
                    raise VersionNotYet(self._why_not(version, wait_s))

    def lease_for_forwarding(self, publication: Publication, holder: str) -> tuple[Slot, Lease] | None:
        """Lease a version that is whole or arriving; None if it is gone. It has no deadline: forwarding has its own."""
        with self.changed:
            for slot in self.slots:
                if slot.publication is publication and slot.state in _PASSED_ON:
                    return slot, self._grant(slot, holder)
            return None

    def lease_base(self, key: tuple[int, int], holder: str) -> tuple[Slot, Lease] | None:
        """Lease a version that is whole, to encode or decode against it; None if it is gone."""
        with self.changed:
            for slot in self.slots:
                if slot.state in _HELD and slot.publication and slot.publication.manifest.key == key:
                    return slot, self._grant(slot, holder)
            return None

    def bases(self, manifest: Manifest) -> tuple[tuple[int, int], ...]:
        """Other versions of the same layout that are here, newest first."""
        with self.changed:
            found = [
                p.manifest.key
                for slot in sorted(self.slots, key=lambda slot: -slot.stamp)
                if slot.state in _HELD and (p := slot.publication) and p.manifest.key != manifest.key
                if p.manifest.same_layout(manifest)
            ]
            return tuple(found)

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

    def reserve(
        self,
        manifest: Manifest,
        timeout_s: float,
        *,
        sealed: bool = False,
        abort: Callable[[], None] | None = None,
    ) -> Slot | None:
        """The slot to write a version to, with memory for it; None if it is held already. One writer at a time.

        What arrived of the version before its transfer was interrupted is still there, in the slot's publication.

        Args:
            sealed: it must not be visible when it is whole. A version that is here sealed is revealed by False.
            abort: ends this transfer, if it stands still while another one could go on.

        Raises:
            VersionRetired: newer ones hold every slot, or it was retired.
            SlotBusy: another writer, or readers of the slot, did not finish in time.
            NotEnoughSharedMemory: the version does not fit.
        """
        deadline = self._now() + timeout_s
        with self.changed:
            slot = self._await_room(manifest, sealed, deadline, timeout_s)
            if slot is None:
                return None
            self._writer, slot.abort = slot, abort
            if slot.state is SlotState.PARTIAL and slot.publication and slot.publication.manifest == manifest:
                slot.state, slot.publication.progress_at = SlotState.RECEIVING, self._now()
                slot.publication.sealed = slot.publication.sealed and sealed
                self.changed.notify_all()
                return slot
            before, slot.state = slot.state, SlotState.RETIRING
            self.changed.notify_all()
            try:
                self._wait_for_leases(slot, manifest, deadline, timeout_s)
            except BaseException:
                if before is SlotState.SEALED and slot.publication and not slot.publication.sealed:
                    before = SlotState.COMPLETE  # revealed meanwhile
                self._end_writing(slot, before)
                raise
            slot.state, slot.publication = SlotState.RECEIVING, None
        try:
            self._provide_memory(slot, manifest.total_bytes)
        except BaseException:
            self._end_writing(slot, SlotState.EMPTY)
            raise
        with self.changed:
            slot.publication = Publication(manifest, sealed, progress_at=self._now())
            self.changed.notify_all()
        return slot

    def arrived(self, publication: Publication, index: int, checksum: int) -> None:
        """One more chunk is in place and matched."""
        with self.changed:
            publication.checksums[index] = checksum
            publication.progress_at = self._now()
            self.changed.notify_all()

    def complete(self, slot: Slot) -> None:
        """All of a version is there: make it visible, unless it is sealed."""
        with self.changed:
            publication = slot.publication
            if publication is None or len(publication.checksums) != publication.manifest.chunk_count:
                raise RuntimeError(f"slot {slot.index} is not complete")
            if publication.manifest.key in self._retired:
                self._end_writing(slot, SlotState.EMPTY)
                raise VersionRetired(f"version {publication.manifest.version} was retired while it arrived")
            self._end_writing(slot, SlotState.SEALED if publication.sealed else SlotState.COMPLETE)
            if not publication.sealed:
                self._supersede(slot)

    def interrupt(self, slot: Slot) -> None:
        """The transfer ended before all of the version was there. What arrived waits for another one."""
        with self.changed:
            publication = slot.publication
            if publication is None or not publication.checksums or publication.manifest.key in self._retired:
                self._end_writing(slot, SlotState.EMPTY)
                return
            publication.keep_until = self._now() + self._partial_s
            self._end_writing(slot, SlotState.PARTIAL)

    def reveal(self, version: int, stamp: int | None = None) -> tuple[int, int]:
        """Let a sealed version be seen, at once or when all of it has arrived. Its key.

        Raises:
            VersionRetired: it is not here, sealed or not.
        """
        with self.changed:
            found = [
                slot
                for slot in self.slots
                if slot.state is not SlotState.EMPTY and slot.version == version and stamp in (None, slot.stamp)
            ]
            if not found:
                raise VersionRetired(f"version {version} is not here to be revealed; found {self._held_text()}")
            slot = max(found, key=lambda slot: slot.stamp)
            return self._reveal(slot)

    def retire(self, version: int, stamp: int | None = None) -> list[tuple[int, int]]:
        """Forget a version, the newest too. Readers that hold it keep it until their leases end. What was retired.

        With a stamp, that publication is refused from now on even if it is not here yet.
        """
        with self.changed:
            found = [
                slot
                for slot in self.slots
                if slot.state is not SlotState.EMPTY and slot.version == version and stamp in (None, slot.stamp)
            ]
            keys = {p.manifest.key for slot in found if (p := slot.publication)}
            if stamp is not None:
                keys.add((version, stamp))
            for slot in found:
                if slot.state is SlotState.RECEIVING:
                    if slot.abort is not None:
                        slot.abort()
                elif slot.state is not SlotState.RETIRING:
                    slot.state = SlotState.EMPTY
            self._retired |= dict.fromkeys(sorted(keys))
            while len(self._retired) > _TOMBSTONES:
                del self._retired[next(iter(self._retired))]
            self.changed.notify_all()
            return sorted(keys)

    def close(self) -> None:
        """Wake everybody who waits. Their waits end in RelayUnreachable."""
        with self.changed:
            self._closed = True
            self.changed.notify_all()

    def _grant(self, slot: Slot, holder: str, hold_s: float | None = None, process: ProcessId | None = None) -> Lease:
        lease = Lease(next(self._ids), holder)
        if hold_s is not None:
            lease.deadline, lease.process = self._now() + hold_s, process
        slot.leases.add(lease)
        return lease

    def _await_room(self, manifest: Manifest, sealed: bool, deadline: float, timeout_s: float) -> Slot | None:
        """The slot to take; None if the version is here already."""
        while True:
            self._drop_stale()
            if self._is_here(manifest, sealed):
                return None
            if self._writer is None:
                for slot in self.slots:
                    if slot.state is SlotState.PARTIAL and slot.publication:
                        if slot.publication.manifest == manifest:
                            return slot
                        if slot.publication.manifest.key == manifest.key:  # the same name for something else
                            slot.state = SlotState.EMPTY
                if (room := make_room(self.slots, manifest)) is not None:
                    return room
                why = "a sealed version to be revealed; use more slots"
            else:
                self._take_over(self._writer, manifest)
                why = "another version's transfer"
            if not self._wait(min(deadline, self._now() + _LIVENESS_POLL_S)) and self._now() >= deadline:
                raise SlotBusy(f"version {manifest.version} waited {timeout_s:.3g} s for {why}")

    def _is_here(self, manifest: Manifest, sealed: bool) -> bool:
        if manifest.key in self._retired:
            raise VersionRetired(f"version {manifest.version} was retired")
        for slot in self.slots:
            if slot.publication is None or slot.publication.manifest.key != manifest.key:
                continue
            if slot.publication.sealed and not sealed and slot.state is not SlotState.EMPTY:
                self._reveal(slot)
            if slot.state in _HELD:
                return True
        return False

    def _take_over(self, writer: Slot, manifest: Manifest) -> None:
        publication = writer.publication
        if publication is None or writer.state is not SlotState.RECEIVING or writer.abort is None:
            return
        same_or_newer = publication.manifest.key == manifest.key or publication.manifest.stamp < manifest.stamp
        if same_or_newer and self._now() - publication.progress_at >= self._takeover_s:
            writer.abort()
            writer.abort = None
            self.takeovers += 1

    def _reveal(self, slot: Slot) -> tuple[int, int]:
        publication = slot.publication
        if publication is None:
            raise RuntimeError("a slot that holds a version has a publication")
        publication.sealed = False
        if slot.state is SlotState.SEALED:
            slot.state = SlotState.COMPLETE
            self._supersede(slot)
        self.changed.notify_all()
        return publication.manifest.key

    def _supersede(self, slot: Slot) -> None:
        """Retire what a version that became visible makes worthless: older transfers, and versions that a rollback undid."""
        for other in self.slots:
            if other is slot or other.stamp >= slot.stamp:
                continue
            undone = other.state in _HELD and other.version >= slot.version
            if undone or other.state is SlotState.PARTIAL:
                other.state = SlotState.EMPTY

    def _drop_stale(self) -> None:
        for slot in self.slots:
            if slot.state is SlotState.PARTIAL and slot.publication and self._now() >= slot.publication.keep_until:
                slot.state = SlotState.EMPTY

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
            slot.state, slot.abort, self._writer = state, None, None
            self.changed.notify_all()

    def _check_not_retired(self, version: int) -> None:
        arriving = (SlotState.RECEIVING, SlotState.PARTIAL, SlotState.SEALED)
        if any(slot.state in arriving and slot.version == version for slot in self.slots):
            return
        visible = [v for v, _ in self.versions()]
        if (visible and version < visible[-1]) or any(v == version for v, _ in self._retired):
            raise VersionRetired(f"version {version} is retired here; found {visible}, lease one of these")

    def _why_not(self, version: int | None, wait_s: float) -> str:
        if version is None:
            return f"no version was here in {wait_s:.3g} s"
        for slot in self.slots:
            if slot.version == version and slot.state is SlotState.SEALED:
                return (
                    f"version {version} is here but sealed, and was not revealed in {wait_s:.3g} s: "
                    "its checkpoint is not durable yet"
                )
            if slot.version == version and slot.publication and slot.state in (SlotState.RECEIVING, SlotState.PARTIAL):
                return (
                    f"version {version} did not become visible in {wait_s:.3g} s; {slot.publication.extent()} are here"
                )
        return f"version {version} did not become visible in {wait_s:.3g} s; found {self._held_text()}"

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
