"""One connection to a relay: its requests, the leases that end with it, and how a version comes in over it.

A version is offered by a publisher or by another relay, or fetched (RobustRL, section 5.2.1). A relay that is not in the tree,
or that comes back, gets what it lacks from any relay that has it, which may still be receiving it, and becomes a source for
others with its first chunk.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from tailrace.paramserver.codec.registry import codec
from tailrace.paramserver.errors import (
    LeaseExpired,
    ParamServerError,
    ProtocolError,
    RelayTimeout,
    RelayUnreachable,
    VersionNotYet,
    to_wire,
)
from tailrace.paramserver.machine.segments import process_of
from tailrace.paramserver.relays.context import RelayContext
from tailrace.paramserver.relays.forward import Hops, send_slot
from tailrace.paramserver.relays.slot import Lease, Publication, Slot
from tailrace.paramserver.relays.slots import SlotTable
from tailrace.paramserver.transport.protocol import INLINE
from tailrace.paramserver.wire.agreement import IN_PLACE, Offer, OfferAnswer, key_from_wire
from tailrace.paramserver.wire.authentication import HANDSHAKE_S, connect
from tailrace.paramserver.wire.channel import Channel, parse_address
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


def fetch_version(
    version: int | None, source: str, relay: RelayContext, timeout_s: float, *, whole: bool = False
) -> tuple[int, int]:
    """Get a version from another relay. Its key.

    Args:
        version: its number; None for the newest that the source has, arriving or not.
        source: the other relay's address.
        relay: this one.
        timeout_s: deadline in seconds for all of it.
        whole: only a version that is visible there; if it is not soon, or the source has no turn, others are to be asked.

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
            request: dict[str, Any] = {"op": "pull", "version": version, "wait_s": wait_s, "arriving": not whole}
            try:
                answer = channel.request(request, wait_s + channel.stall_s)
            except VersionNotYet:
                if whole or remaining <= _SLICE_S:
                    raise
                continue
            offer = Offer.from_wire(answer, max_bytes=relay.max_bytes)
            left = max(_GRACE_S, deadline - machine.now())
            if receive_version(channel, offer, relay, slot_timeout_s=left, deadline=deadline):
                return offer.manifest.key
    finally:
        channel.close()


MAX_WAIT_S = 3600.0
_MAX_HOPS = 64
_MAX_BYTES = 2**62


def version_of(message: dict[str, Any]) -> int:
    """The version that is asked for."""
    version = message.get("version")
    if type(version) is not int:
        raise ProtocolError(f"version: found {version!r}, expected an integer")
    return version


def stamp_of(message: dict[str, Any]) -> int | None:
    """The stamp that is asked for, if any."""
    stamp = message.get("stamp")
    if stamp is not None and type(stamp) is not int:
        raise ProtocolError(f"stamp: found {stamp!r}, expected an integer or null")
    return stamp


def flag_of(message: dict[str, Any], field: str) -> bool:
    """A flag, false if it is missing."""
    value = message.get(field, False)
    if type(value) is not bool:
        raise ProtocolError(f"{field}: found {value!r}, expected true or false")
    return value


def seconds_of(message: dict[str, Any], field: str) -> float:
    """A length of time."""
    value = message.get(field)
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= MAX_WAIT_S:
        raise ProtocolError(f"{field}: found {value!r}, expected seconds from 0 to {MAX_WAIT_S:.0f}")
    return float(value)


def bytes_of(message: dict[str, Any], field: str, at_most: int | None) -> int:
    """A number of bytes, or another number that is not negative."""
    value, high = message.get(field), _MAX_BYTES if at_most is None else at_most
    if type(value) is not int or not 0 <= value <= high:
        raise ProtocolError(f"{field}: found {value!r}, expected an integer from 0 to {high}")
    return value


def address_of(value: object) -> str:
    """A relay's address."""
    text = str(value)
    parse_address(text)
    return text


def hops_of(message: dict[str, Any]) -> list[str]:
    """The next hops: `addresses`, or one `address`, or null for none."""
    addresses = message.get("addresses")
    if addresses is None:
        address = message.get("address")
        return [] if address is None else [address_of(address)]
    if not isinstance(addresses, list) or len(addresses) > _MAX_HOPS:
        raise ProtocolError(f"addresses: found {str(addresses)[:60]}, expected a list of at most {_MAX_HOPS}")
    found = [address_of(address) for address in addresses]
    if len(set(found)) != len(found):
        raise ProtocolError(f"addresses: found a relay twice in {str(found)[:200]}, expected each once")
    return found


class Session:
    """The state of one connection: its requests, and the leases that it has.

    Args:
        channel: the connection.
        relay: the state that the relay's connections share.
        hops: the relay's next hops.
    """

    def __init__(self, channel: Channel, relay: RelayContext, hops: Hops) -> None:
        self._channel, self._relay, self._table, self._hops = channel, relay, relay.table, hops
        self._encoder = relay.means.encoder(relay.machine.now)
        self._leases: dict[int, tuple[Slot, Lease]] = {}
        self._operations: dict[str, Callable[[dict[str, Any]], dict[str, Any] | None]] = {
            "offer": self._offer,
            "stage": self._stage,
            "unstage": self._unstage,
            "versions": lambda _: self._versions(),
            "lease": self._lease,
            "release": self._release,
            "renew": self._renew,
            "pull": self._pull,
            "fetch": self._fetch,
            "reveal": self._reveal,
            "retire": self._retire,
            "set_next": self._set_next,
            "status": lambda _: self._status(),
        }

    def handle(self, message: dict[str, Any]) -> None:
        """Carry one request out and answer it. An error inside a transfer ends the connection."""
        operation = self._operations.get(str(message.get("op")))
        try:
            if operation is None:
                raise ProtocolError(
                    f"found the operation {message.get('op')!r}, expected {', '.join(self._operations)}"
                )
            answer = operation(message)
        except RelayUnreachable:
            raise
        except ParamServerError as error:
            self._channel.send(to_wire(error))
            if isinstance(error, ProtocolError | RelayTimeout):
                raise  # the two ends may disagree on the next message
        else:
            if answer is not None:
                self._channel.send(answer)

    def release_all(self) -> None:
        """Give everything back."""
        for slot, lease in self._leases.values():
            self._table.release(slot, lease)
        self._leases.clear()
        self._table.staging.end(self)

    def _stage(self, message: dict[str, Any]) -> dict[str, Any]:
        nbytes = bytes_of(message, "nbytes", self._relay.max_bytes)
        loan = self._table.staging.lend(
            self,
            nbytes,
            recycled=flag_of(message, "recycled"),
            making=lambda: self._channel.send({"making": True}),
        )
        if loan is None:
            return {"loan": None}
        return {"loan": loan.id, "segment": loan.segment.name, "generation": loan.generation}

    def _unstage(self, message: dict[str, Any]) -> dict[str, Any]:
        self._table.staging.give_back(self, bytes_of(message, "loan", None))
        return {"ok": True}

    def _offer(self, message: dict[str, Any]) -> None:
        relay = self._relay
        offer = Offer.from_wire(message, max_bytes=relay.max_bytes)
        receive_version(self._channel, offer, relay, slot_timeout_s=relay.slot_timeout_s)

    def _versions(self) -> dict[str, Any]:
        table = self._table
        return {
            "versions": table.versions(),
            "sealed": table.sealed(),
            "newest_stamp": table.newest_stamp(),
            **table.memory(),
        }

    def _lease(self, message: dict[str, Any]) -> dict[str, Any]:
        process = process_of(message)
        slot, lease = self._table.lease(
            version_of(message),
            wait_s=seconds_of(message, "wait_s"),
            hold_s=seconds_of(message, "hold_s"),
            holder=f"pid {process.pid}" if process else self._channel.peer,
            process=process,
        )
        self._leases[lease.id] = (slot, lease)
        publication = slot.publication
        if publication is None:
            raise RuntimeError("a leased slot has a publication")
        return {
            "lease": lease.id,
            "segment": slot.memory.name,
            "generation": slot.generation,
            "manifest": publication.manifest.to_wire(),
            "checksums": publication.in_order(),
        }

    def _release(self, message: dict[str, Any]) -> dict[str, Any]:
        slot, lease = self._held(message)
        del self._leases[lease.id]
        return {"kept": self._table.release(slot, lease)}

    def _renew(self, message: dict[str, Any]) -> dict[str, Any]:
        return {"kept": self._table.renew(*self._held(message), seconds_of(message, "hold_s"))}

    def _pull(self, message: dict[str, Any]) -> None:
        """Offer the version that is asked for to the one who asks."""
        wait_s = seconds_of(message, "wait_s")
        slot, lease = self._table.lease(
            None if message.get("version") is None else version_of(message),
            wait_s=wait_s,
            hold_s=math.inf,  # the transfer has its own deadline
            holder=f"{self._channel.peer} pulling",
            process=None,
            arriving=flag_of(message, "arriving"),
        )
        try:
            publication = slot.publication
            if publication is None:
                raise RuntimeError("a leased slot has a publication")
            with self._relay.turns.one(wait_s):
                send_slot(
                    self._channel, self._relay, slot, publication, sealed=publication.sealed, encoder=self._encoder
                )
        finally:
            self._table.release(slot, lease)

    def _fetch(self, message: dict[str, Any]) -> dict[str, Any]:
        relay = self._relay
        version = None if message.get("version") is None else version_of(message)
        source = address_of(message.get("source"))
        timeout_s = relay.slot_timeout_s if message.get("timeout_s") is None else seconds_of(message, "timeout_s")
        try:
            key = fetch_version(version, source, relay, timeout_s, whole=flag_of(message, "whole"))
        except ParamServerError as error:  # of the source, or on the way to it: this connection is none the worse
            return dict(to_wire(error))
        return {"fetched": list(key)}

    def _reveal(self, message: dict[str, Any]) -> dict[str, Any]:
        return {"revealed": list(self._table.reveal(version_of(message), stamp_of(message)))}

    def _retire(self, message: dict[str, Any]) -> dict[str, Any]:
        """The publications of `version` (with or without a `stamp`), or of all `keys`."""
        keys = message.get("keys")
        if keys is None:
            return {"retired": [list(key) for key in self._table.retire(version_of(message), stamp_of(message))]}
        if not isinstance(keys, list):
            raise ProtocolError(f"keys: found {str(keys)[:40]!r}, expected versions with stamps")
        checked = [key_from_wire(key, "keys") for key in keys]
        return {"retired": [list(key) for version, stamp in checked for key in self._table.retire(version, stamp)]}

    def _set_next(self, message: dict[str, Any]) -> dict[str, Any]:
        self._hops.set_next(hops_of(message))
        return {"ok": True}

    def _status(self) -> dict[str, Any]:
        return {
            "name": self._relay.name,
            "pid": os.getpid(),
            "versions": [version for version, _ in self._table.versions()],
            **self._table.status(),
            **self._hops.status(),
            **self._table.memory(),
            "transfers": {**self._relay.counts.to_wire(), "takeovers": self._table.takeovers},
        }

    def _held(self, message: dict[str, Any]) -> tuple[Slot, Lease]:
        lease = message.get("lease")
        held = self._leases.get(lease) if type(lease) is int else None
        if held is None:
            raise LeaseExpired(f"found no lease {message.get('lease')!r} on this connection")
        return held
