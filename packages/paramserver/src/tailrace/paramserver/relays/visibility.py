"""How a version gets into a slot of a relay, and when readers see it: whole, checked, and not sealed any more."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tailrace.paramserver.errors import SlotBusy, VersionRetired
from tailrace.paramserver.manifest import Manifest
from tailrace.paramserver.relays.shelf import HELD, Shelf
from tailrace.paramserver.relays.slot import Publication, Slot, SlotState


def make_room(slots: Sequence[Slot], manifest: Manifest, *, now: float, follow: bool = False) -> Slot | None:
    """The slot for a version; None if only sealed versions, which may still be revealed, could make room.

    It is an empty slot if there is one, else that of the oldest interrupted transfer, else that of a visible version: of those
    that are held least firmly (see `LeaseBook.hold`) the oldest. It is never that of the newest visible version, which readers
    may need at any moment, or of an interrupted transfer of a newer version, whose chunks would have to be sent again. A sealed
    version makes room only for one that replaces it, from a trainer that restarted from an earlier checkpoint, or once a newer
    version is visible.

    Args:
        now: the clock's time. An interrupted transfer without progress for `IDLE_S` makes room even for an older version:
            its trainer is dead, and its clock was ahead.
        follow: another relay forwards the version, which is visible there. A sealed earlier version then makes room too,
            since its reveal may never arrive: that relay may no longer have it.

    Raises:
        VersionRetired: newer versions hold every slot, or the version was superseded.
        SlotBusy: newer versions are on their way.
    """
    visible = sorted((slot for slot in slots if slot.state is SlotState.COMPLETE), key=lambda slot: slot.stamp)
    newest = visible[-1] if visible else None
    empty = [slot for slot in slots if slot.state is SlotState.EMPTY]
    partial = sorted((slot for slot in slots if slot.state is SlotState.PARTIAL), key=lambda slot: slot.stamp)
    older_partial = [slot for slot in partial if slot.stamp < manifest.stamp]
    no_place = newest is not None and (manifest.version >= newest.version or not (empty or older_partial))
    if newest is not None and manifest.stamp < newest.stamp and no_place:
        raise VersionRetired(f"version {manifest.version} comes after version {newest.version}, which supersedes it")
    if empty:
        return min(empty, key=lambda slot: slot.leases.hold(now))
    if older_partial:
        return older_partial[0]
    sealed = sorted((slot for slot in slots if slot.state is SlotState.SEALED), key=lambda slot: slot.stamp)
    for slot in sealed:
        overtaken = follow or (newest is not None and slot.stamp < newest.stamp)
        if slot.stamp < manifest.stamp and (manifest.version <= slot.version or overtaken):
            return slot
    if len(visible) > 1:
        return min(visible[:-1], key=lambda slot: slot.leases.hold(now))
    if partial:
        if partial[0].publication is not None and partial[0].publication.progress_at < now - IDLE_S:
            return partial[0]
        raise SlotBusy(
            f"version {manifest.version} waits for version {partial[0].version}, which is newer and arriving"
        )
    return None


_LIVENESS_POLL_S = (
    0.25  # a dead reader's connection usually says so at once; this is for one whose socket a child inherited
)

IDLE_S = 10.0


class Visibility(Shelf):
    """Reserves slots for versions that arrive. One writer at a time."""

    _writer: Slot | None = None

    def reserve(
        self,
        manifest: Manifest,
        timeout_s: float,
        *,
        sealed: bool = False,
        relayed: bool = False,
        abort: Callable[[], None] | None = None,
        loan: int | None = None,
    ) -> Slot | None:
        """The slot to write a version to, with memory for it; None if it is held already. One writer at a time.

        What arrived of the version before its transfer was interrupted is still there, in the slot's publication.

        Args:
            sealed: whether it must stay invisible when it is complete. A version that is here sealed is revealed by False.
            relayed: whether it comes from another relay.
            abort: ends this transfer, if it stands still while another one could go on.
            loan: of memory that holds all of it already, and becomes the slot's; unless it was taken by an earlier offer
                or given back meanwhile (see `Publication.in_place`).

        Raises:
            VersionRetired: newer ones hold every slot, or it was retired.
            SlotBusy: another writer, or readers of the slot, did not finish in time.
            NotEnoughSharedMemory: the version does not fit.
            ProtocolError: the loan is smaller than the version.
        """
        deadline = self._now() + timeout_s
        with self.changed:
            slot = self._await_room(manifest, sealed, relayed, deadline, timeout_s)
            if slot is None:
                return None
            self._writer, slot.abort = slot, abort
            loan = loan if loan is not None and self.staging.is_lent(loan) else None
            same = slot.publication is not None and slot.publication.manifest == manifest
            if loan is None and slot.state is SlotState.PARTIAL and same and slot.publication:
                slot.state, slot.publication.progress_at = SlotState.RECEIVING, self._now()
                slot.publication.in_place = False
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
                if slot.publication and slot.publication.manifest.key in self._retired:
                    before = SlotState.EMPTY  # retired meanwhile
                self._end_writing(slot, before)
                raise
            slot.state, slot.publication = SlotState.RECEIVING, None
        try:
            with self.changed:
                in_place = loan is not None and self.staging.is_lent(loan)
                if loan is not None and in_place:
                    slot.block = self.staging.exchange(loan, manifest.total_bytes, slot.block)
            if not in_place:
                slot.block.provide(self._owner, manifest.total_bytes)
        except BaseException:
            self._end_writing(slot, SlotState.EMPTY)
            raise
        with self.changed:
            slot.publication = Publication(manifest, sealed, in_place=in_place, progress_at=self._now())
            self.changed.notify_all()
        return slot

    def arrived(self, publication: Publication, index: int, checksum: int) -> None:
        """Note that one more chunk is in place and matched its checksum."""
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

    def reveal(self, version: int, stamp: int | None = None) -> tuple[int, int]:
        """Let a sealed version be seen, at once or when all of it has arrived. Its key.

        Raises:
            VersionRetired: it is not here, sealed or not.
        """
        with self.changed:
            found = self._publications(version, stamp)
            if not found:
                raise VersionRetired(f"version {version} is not here to be revealed; found {self._held_text()}")
            slot = max(found, key=lambda slot: slot.stamp)
            return self._reveal(slot)

    def interrupt(self, slot: Slot) -> None:
        """End a transfer before the version is complete. Its chunks are kept for another transfer."""
        with self.changed:
            publication = slot.publication
            if publication is None or not publication.checksums or publication.manifest.key in self._retired:
                self._end_writing(slot, SlotState.EMPTY)
                return
            publication.keep_until = self._now() + self._partial_s
            self._end_writing(slot, SlotState.PARTIAL)

    def _await_room(
        self, manifest: Manifest, sealed: bool, relayed: bool, deadline: float, timeout_s: float
    ) -> Slot | None:
        """The slot to take; None if the version is here already."""
        follow = relayed and not sealed
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
                if (room := make_room(self.slots, manifest, now=self._now(), follow=follow)) is not None:
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
            if slot.state in HELD:
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
        """Retire publications that a newly visible version replaces: older transfers, and versions that a rollback undid."""
        for other in self.slots:
            if other is slot or other.stamp >= slot.stamp:
                continue
            undone = other.state in HELD and other.version >= slot.version
            if undone or other.state is SlotState.PARTIAL:
                other.state = SlotState.EMPTY

    def _wait_for_leases(self, slot: Slot, manifest: Manifest, deadline: float, timeout_s: float) -> None:
        while True:
            slot.leases.reclaim_dead(self._now())
            if not slot.leases.binding:
                slot.leases.yield_all()
                return
            if not self._wait(min(deadline, self._now() + _LIVENESS_POLL_S)) and self._now() >= deadline:
                raise SlotBusy(
                    f"version {manifest.version} waited {timeout_s:.3g} s for the slot of the oldest version, "
                    f"which is leased by {slot.leases.holders()}; use more slots or shorter leases"
                )

    def _end_writing(self, slot: Slot, state: SlotState) -> None:
        with self.changed:
            slot.state, slot.abort, self._writer = state, None, None
            self.changed.notify_all()
