"""Sends a version that a relay holds or is receiving, to the next relay or to who asked for it."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType

from tailrace.paramserver.codec.choose import LinkEncoder
from tailrace.paramserver.machine.protocol import MemorySegment
from tailrace.paramserver.relays.context import RelayContext
from tailrace.paramserver.relays.slot import Lease, Publication, Slot, SlotState
from tailrace.paramserver.wire.agreement import Offer
from tailrace.paramserver.wire.channel import Channel
from tailrace.paramserver.wire.sending import send_version


class SlotSupply:
    """A `Supply` from a leased slot. Chunks go out as they arrive.

    Args:
        relay: the relay.
        slot: leased for as long as this is in use.
        publication: the version in it.
        check: called before every chunk; raises to end the transfer.
    """

    def __init__(self, relay: RelayContext, slot: Slot, publication: Publication, check: Callable[[], None]) -> None:
        self._table, self._slot, self._publication = relay.table, slot, publication
        self._now, self._check = relay.machine.now, check
        # How long to wait for the next chunk from upstream before the receiver is let go for now. Less than a peer may be
        # silent, so that a slow upstream never looks like a dead relay.
        self._patience_s = relay.stall_s / 2
        self._base: tuple[tuple[int, int], Slot, Lease] | None = None

    @property
    def memory(self) -> MemorySegment:
        return self._slot.memory

    def next(self, wanted: list[int]) -> int | None:
        deadline = self._now() + self._patience_s
        with self._table.changed:
            while True:
                self._check()
                there = self._publication.checksums
                for position, index in enumerate(wanted):
                    if index in there:
                        return position
                remaining = deadline - self._now()
                if self._slot.state is not SlotState.RECEIVING or remaining <= 0:
                    return None
                self._table.changed.wait(remaining)

    def checksum(self, index: int) -> int:
        return self._publication.checksums[index]

    def base(self, key: tuple[int, int]) -> memoryview | None:
        """The base is held until `close`, unless a new version needs its slot."""
        if self._base is None or self._base[0] != key:
            self.close()
            leased = self._table.lease_base(key, f"base of version {self._publication.manifest.version}")
            if leased is None:
                return None
            self._base = (key, *leased)
        if self._table.wanted(self._base[1]):
            self.close()
            return None
        return self._base[1].memory.view

    def __enter__(self) -> SlotSupply:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Give the base back."""
        if self._base is not None:
            self._table.release(self._base[1], self._base[2])
            self._base = None


def send_slot(
    channel: Channel,
    relay: RelayContext,
    slot: Slot,
    publication: Publication,
    *,
    sealed: bool,
    encoder: LinkEncoder,
    check: Callable[[], None] = lambda: None,
    give_up: Callable[[], bool] = lambda: False,
    sent: set[int] | None = None,
) -> bool:
    """Offer the version in a leased slot and send what the receiver lacks of it, see `send_version`.

    Args:
        check: called before every chunk; raises to end the transfer.
    """
    manifest, supply = publication.manifest, SlotSupply(relay, slot, publication, check)
    with supply, relay.means.exported(slot.memory, manifest.total_bytes) as transports:
        return send_version(
            channel,
            Offer(manifest, sealed, transports, relay.means.codecs, relay.table.bases(manifest), relayed=True),
            supply,
            relay.counts,
            go_timeout_s=relay.slot_timeout_s + relay.stall_s,
            encoder=encoder,
            give_up=give_up,
            sent=sent,
        )
