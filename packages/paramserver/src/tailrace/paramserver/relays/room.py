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
    """The slot that the version is to take, or None if a sealed version is in the way that may yet be revealed.

    An empty slot if there is one; else the oldest interrupted transfer; else the oldest visible version. Never the newest
    visible version, which readers may need at any moment, and never an interrupted transfer of a newer version, whose
    chunks would have to come again. A sealed version goes only for one that is published in its stead, by a trainer that
    came back from a checkpoint before it; or once a newer version is visible.

    Args:
        follow: another relay passes the version on, for all to see: then a sealed version before it goes too. The reveal
            of it may never come here, since that relay may have it no more.
        idle_since: an interrupted transfer of which nothing has come since this clock time goes even for an older version:
            its trainer is dead, and had a clock that was ahead.

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
        return min(empty, key=lambda slot: len(slot.leases.held))
    if older_partial:
        return older_partial[0]
    sealed = sorted((slot for slot in slots if slot.state is SlotState.SEALED), key=lambda slot: slot.stamp)
    for slot in sealed:
        overtaken = follow or (newest is not None and slot.stamp < newest.stamp)
        if slot.stamp < manifest.stamp and (manifest.version <= slot.version or overtaken):
            return slot
    if len(visible) > 1:
        return visible[0]
    if partial:
        if partial[0].publication is not None and partial[0].publication.progress_at < idle_since:
            return partial[0]
        raise SlotBusy(
            f"version {manifest.version} waits for version {partial[0].version}, which is newer and arriving"
        )
    return None
