"""The version slots of a relay (see `slot` for their states).

Invariants, which make torn reads impossible:
* only COMPLETE slots are leased to readers, and a slot is complete only when every chunk of it matched its checksum;
* memory of a slot is written only in RECEIVING, which a slot enters with no lease on it, or, if it was interrupted,
  with leases of forwarders only, which read chunks that have arrived; those are not written again;
* the newest complete version is never the one that makes room.
"""

from __future__ import annotations

from tailrace.paramserver.relays.reading import Reading
from tailrace.paramserver.relays.slot import Slot, SlotState
from tailrace.paramserver.relays.visibility import Visibility

__all__ = ["Slot", "SlotState", "SlotTable"]

_TOMBSTONES = 256


class SlotTable(Reading, Visibility):
    """The slots, with all that can be done to them. The arguments are those of `Shelf`."""

    def retire(self, version: int, stamp: int | None = None) -> list[tuple[int, int]]:
        """Retire a version, also the newest. Readers keep it until their leases end. Returns the retired publications.

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
