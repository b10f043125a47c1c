"""Which slot makes room for a new version. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tailrace.paramserver.errors import SlotBusy, VersionRetired
from tailrace.paramserver.manifest import Manifest
from tailrace.paramserver.relays.slot import Slot, SlotState


def make_room(
    slots: Sequence[Slot], manifest: Manifest, *, follow: bool = False, idle_since: float = -math.inf
) -> Slot | None:
    """The slot for a version; None if only sealed versions, which may still be revealed, could make room.

    It is an empty slot if there is one, else that of the oldest interrupted transfer, else that of a visible version: of those
    that are held least firmly (see `LeaseBook.hold`) the oldest. It is never that of the newest visible version, which readers
    may need at any moment, or of an interrupted transfer of a newer version, whose chunks would have to be sent again. A sealed
    version makes room only for one that replaces it, from a trainer that restarted from an earlier checkpoint, or once a newer
    version is visible.

    Args:
        follow: another relay forwards the version, which is visible there. A sealed earlier version then makes room too,
            since its reveal may never arrive: that relay may no longer have it.
        idle_since: an interrupted transfer without progress since this clock time makes room even for an older version: its
            trainer is dead, and its clock was ahead.

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
        return min(empty, key=lambda slot: slot.leases.hold)
    if older_partial:
        return older_partial[0]
    sealed = sorted((slot for slot in slots if slot.state is SlotState.SEALED), key=lambda slot: slot.stamp)
    for slot in sealed:
        overtaken = follow or (newest is not None and slot.stamp < newest.stamp)
        if slot.stamp < manifest.stamp and (manifest.version <= slot.version or overtaken):
            return slot
    if len(visible) > 1:
        return min(visible[:-1], key=lambda slot: slot.leases.hold)
    if partial:
        if partial[0].publication is not None and partial[0].publication.progress_at < idle_since:
            return partial[0]
        raise SlotBusy(
            f"version {manifest.version} waits for version {partial[0].version}, which is newer and arriving"
        )
    return None
