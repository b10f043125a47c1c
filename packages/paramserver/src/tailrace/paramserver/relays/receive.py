"""A relay takes a version that a publisher or another relay offers, or that it fetches (RobustRL, section 5.2.1).

A relay that is not in the tree, or that comes back, gets what it lacks from any relay that has it, which may still be
receiving it, and becomes a source for others with its first chunk.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from tailrace.paramserver.codec.registry import codec
from tailrace.paramserver.errors import RelayTimeout, VersionNotYet
from tailrace.paramserver.relays.context import RelayContext
from tailrace.paramserver.relays.slot import Publication, Slot
from tailrace.paramserver.relays.slots import SlotTable
from tailrace.paramserver.transport.registry import INLINE
from tailrace.paramserver.wire.agreement import IN_PLACE, Offer, OfferAnswer
from tailrace.paramserver.wire.authentication import HANDSHAKE_S, connect
from tailrace.paramserver.wire.channel import Channel
from tailrace.paramserver.wire.receiving import InPlace, Intake, receive_chunks


def receive_version(
    channel: Channel, offer: Offer, relay: RelayContext, *, slot_timeout_s: float, deadline: float | None = None
) -> bool:
    """Answer an offer and receive the missing chunks.

    Args:
        relay: the relay that takes it.
        slot_timeout_s: how long the version may wait for a slot.
        deadline: clock time by which all of it must be there.

    Returns:
        Whether the version is here now, visible or sealed: False if the sender stopped before.

    Raises:
        ParamServerError: the version is not here; what of it arrived waits for another offer.
    """
    table = relay.table
    slot = table.reserve(
        offer.manifest,
        slot_timeout_s,
        sealed=offer.sealed,
        relayed=offer.relayed,
        abort=channel.shutdown,
        loan=offer.loan,
    )
    if slot is None or slot.publication is None:
        channel.send({"have": True})
        return True
    sink = _SlotSink(table, slot, slot.publication, relay.machine.now, deadline)
    try:
        with ExitStack() as held:
            if slot.publication.in_place:
                answer, intake = OfferAnswer(tuple(slot.publication.missing()), IN_PLACE), Intake(InPlace())
            else:
                answer, intake = _agree(offer, slot.publication, relay, held)
            held.callback(intake.close)
            channel.send(answer.to_wire())
            whole = receive_chunks(channel, offer.manifest, list(answer.missing), sink, intake, relay.counts)
    except BaseException:
        table.interrupt(slot)
        raise
    if not whole:
        table.interrupt(slot)
        return False
    table.complete(slot)
    channel.send({"complete": True})
    return True


def _agree(offer: Offer, publication: Publication, relay: RelayContext, held: ExitStack) -> tuple[OfferAnswer, Intake]:
    """How to receive the missing chunks. `held` releases the resources for that."""
    missing = tuple(publication.missing())
    if missing:
        transport, source = relay.means.open(offer.transports)
        if source is not None:
            return OfferAnswer(missing, transport), Intake(source)
        name, key = relay.means.choose_codec(offer, relay.table.bases(offer.manifest))
        if name is not None and key is not None:
            leased = relay.table.lease_base(key, f"base of version {offer.manifest.version}")
            if leased is not None:
                held.callback(relay.table.release, *leased)
                return OfferAnswer(missing, INLINE, name, key), Intake(None, codec(name), leased[0].memory.view)
    return OfferAnswer(missing), Intake()


class _SlotSink:
    """Chunks into a slot (see `Sink`)."""

    def __init__(
        self, table: SlotTable, slot: Slot, publication: Publication, now: Callable[[], float], deadline: float | None
    ) -> None:
        self._table, self._publication, self._now, self._deadline = table, publication, now, deadline
        self.view = slot.memory.view

    def progress(self) -> None:
        self._publication.progress_at = self._now()
        if self._deadline is not None and self._publication.progress_at > self._deadline:
            raise RelayTimeout(
                f"version {self._publication.manifest.version} was not here in time; "
                f"{self._publication.extent()} are, and are kept"
            )

    def arrived(self, index: int, checksum: int) -> None:
        self._table.arrived(self._publication, index, checksum)


_SLICE_S = 1.0  # of a wait for the source
_GRACE_S = 0.5  # for an answer to come back


def fetch_version(version: int | None, source: str, relay: RelayContext, timeout_s: float) -> tuple[int, int]:
    """Get a version from another relay. Its key.

    Args:
        version: its number; None for the newest that the source has, arriving or not.
        source: the other relay's address.
        relay: this one.
        timeout_s: deadline in seconds for all of it.

    Raises:
        RelayTimeout: it was not here in time. What arrived is kept, and another source can go on.
        VersionNotYet, VersionRetired: the source does not have it.
        ParamServerError: what the source answered, or what happened to the connection.
    """
    machine = relay.machine
    deadline = machine.now() + timeout_s
    channel, _ = connect(
        machine,
        source,
        token=relay.token,
        timeout_s=min(HANDSHAKE_S, timeout_s),
        stall_s=min(relay.stall_s, timeout_s),
    )
    try:
        while True:
            remaining = deadline - machine.now()
            if remaining <= 0:
                raise RelayTimeout(f"version {version} did not arrive from {source} in {timeout_s:.3g} s")
            wait_s = min(_SLICE_S, remaining)
            request: dict[str, Any] = {"op": "pull", "version": version, "wait_s": wait_s, "arriving": True}
            try:
                answer = channel.request(request, wait_s + channel.stall_s)
            except VersionNotYet:
                if remaining <= _SLICE_S:
                    raise
                continue
            offer = Offer.from_wire(answer, max_bytes=relay.max_bytes)
            left = max(_GRACE_S, deadline - machine.now())
            if receive_version(channel, offer, relay, slot_timeout_s=left, deadline=deadline):
                return offer.manifest.key
    finally:
        channel.close()
