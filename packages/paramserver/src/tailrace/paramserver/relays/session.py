"""One connection to a relay: its requests, and the leases that end with it."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import Any

from tailrace.paramserver.errors import (
    LeaseExpired,
    ParamServerError,
    ProtocolError,
    RelayTimeout,
    RelayUnreachable,
    to_wire,
)
from tailrace.paramserver.machine.liveness import process_of
from tailrace.paramserver.relays.context import RelayContext
from tailrace.paramserver.relays.forward import Hops
from tailrace.paramserver.relays.receive import fetch_version, receive_version
from tailrace.paramserver.relays.slot import Lease, Slot
from tailrace.paramserver.relays.supply import send_slot
from tailrace.paramserver.wire.address import parse_address
from tailrace.paramserver.wire.agreement import Offer, key_from_wire
from tailrace.paramserver.wire.channel import Channel

_MAX_WAIT_S = 3600.0
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
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= _MAX_WAIT_S:
        raise ProtocolError(f"{field}: found {value!r}, expected seconds from 0 to {_MAX_WAIT_S:.0f}")
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
        return {"versions": table.versions(), "sealed": table.sealed(), "newest_stamp": table.newest_stamp()}

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
        slot, lease = self._table.lease(
            None if message.get("version") is None else version_of(message),
            wait_s=seconds_of(message, "wait_s"),
            hold_s=math.inf,  # the transfer has its own deadline
            holder=f"{self._channel.peer} pulling",
            process=None,
            arriving=flag_of(message, "arriving"),
        )
        try:
            publication = slot.publication
            if publication is None:
                raise RuntimeError("a leased slot has a publication")
            send_slot(self._channel, self._relay, slot, publication, sealed=publication.sealed, encoder=self._encoder)
        finally:
            self._table.release(slot, lease)

    def _fetch(self, message: dict[str, Any]) -> dict[str, Any]:
        relay = self._relay
        version = None if message.get("version") is None else version_of(message)
        source = address_of(message.get("source"))
        timeout_s = relay.slot_timeout_s if message.get("timeout_s") is None else seconds_of(message, "timeout_s")
        try:
            key = fetch_version(version, source, relay, timeout_s)
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
            "transfers": {**self._relay.counts.to_wire(), "takeovers": self._table.takeovers},
        }

    def _held(self, message: dict[str, Any]) -> tuple[Slot, Lease]:
        lease = message.get("lease")
        held = self._leases.get(lease) if type(lease) is int else None
        if held is None:
            raise LeaseExpired(f"found no lease {message.get('lease')!r} on this connection")
        return held
