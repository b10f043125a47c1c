"""The version slots of a relay (see `slot` for their states), and leases on what they hold.

Invariants, which make torn reads impossible:
* only COMPLETE slots are leased to readers, and a slot is complete only when every chunk of it matched its checksum;
* memory of a slot is written only in RECEIVING, which a slot enters with no lease on it, or, if it was interrupted,
  with leases of forwarders only, which read chunks that have arrived; those are not written again;
* the newest complete version is never the one that makes room.
"""

from __future__ import annotations

from tailrace.paramserver.errors import VersionNotYet, VersionRetired
from tailrace.paramserver.manifest import Manifest
from tailrace.paramserver.relays.shelf import HELD, PASSED_ON, Shelf
from tailrace.paramserver.relays.slot import Lease, Publication, Slot, SlotState
from tailrace.paramserver.relays.visibility import Visibility
from tailrace.processes import ProcessId

_MOST_BASES = 16  # relays for which one is kept; those of relays that are gone for good are pushed out


class Reading(Shelf):
    """Grants leases."""

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
            arriving: the reader is a relay that forwards it, so it may still be arriving or sealed.

        Raises:
            VersionRetired: a newer one has taken its place.
            VersionNotYet: it did not become visible within `wait_s`.
        """
        deadline = self._now() + wait_s
        states = PASSED_ON if arriving else (SlotState.COMPLETE,)
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
                if slot.publication is publication and slot.state in PASSED_ON:
                    return slot, self._grant(slot, holder)
            return None

    def lease_base(self, key: tuple[int, int], holder: str) -> tuple[Slot, Lease] | None:
        """Lease a version that is whole, to encode or decode against it; None if it is gone."""
        with self.changed:
            for slot in self.slots:
                if slot.state in HELD and slot.publication and slot.publication.manifest.key == key:
                    return slot, self._grant(slot, holder)
            return None

    def keep_base(self, key: tuple[int, int], address: str) -> None:
        """Keep a version that another relay has acknowledged, as the base of the deltas that it is sent next.

        It stays until that relay acknowledges another one, or a writer finds no other slot. So the base never runs ahead of
        what the receiver has said that it holds, and outlasts versions that did not reach it.

        Args:
            key: the version.
            address: the relay's address.
        """
        with self.changed:
            leased = self.lease_base(key, f"base for {address}")
            if leased is None:
                return
            leased[1].yields = True
            given_up = [self._bases.pop(address)] if address in self._bases else []
            self._bases[address] = leased
            if len(self._bases) > _MOST_BASES:
                given_up.append(self._bases.pop(next(iter(self._bases))))
            for slot, lease in given_up:
                self.release(slot, lease)

    def bases(self, manifest: Manifest) -> tuple[tuple[int, int], ...]:
        """Other versions of the same layout that are here, newest first."""
        with self.changed:
            found = [
                p.manifest.key
                for slot in sorted(self.slots, key=lambda slot: -slot.stamp)
                if slot.state in HELD and (p := slot.publication) and p.manifest.key != manifest.key
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

    def _grant(self, slot: Slot, holder: str, hold_s: float | None = None, process: ProcessId | None = None) -> Lease:
        lease = Lease(next(self._lease_ids), holder)
        if hold_s is not None:
            lease.deadline, lease.process = self._now() + hold_s, process
        slot.leases.add(lease)
        return lease

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


_TOMBSTONES = 256


class SlotTable(Reading, Visibility):
    """The slots, with all that can be done to them. The arguments are those of `Shelf`."""

    def retire(self, version: int, stamp: int | None = None) -> list[tuple[int, int]]:
        """Retire a version, also the newest. Readers keep it until their leases end. Returns the retired publications.

        With a stamp, that publication is refused from now on even if it is not here yet.
        """
        with self.changed:
            found = self._publications(version, stamp)
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
