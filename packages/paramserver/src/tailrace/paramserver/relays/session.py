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
from tailrace.paramserver.machine.liveness import ProcessId
from tailrace.paramserver.manifest import Manifest
from tailrace.paramserver.relays.forward import Forwarder
from tailrace.paramserver.relays.leases import Lease
from tailrace.paramserver.relays.slots import Slot, SlotTable
from tailrace.paramserver.wire.address import parse_address
from tailrace.paramserver.wire.channel import Channel
from tailrace.paramserver.wire.transfer import receive_version, stream_version

_MAX_WAIT_S = 3600.0


class Session:
    """What one connection asks for and holds.

    Args:
        channel: the connection.
        table: the relay's versions.
        forwarder: the relay's link to the next one.
        name: of the relay.
        max_bytes: the largest version to accept.
        slot_timeout_s: how long a new version may wait for readers.
    """

    def __init__(
        self,
        channel: Channel,
        table: SlotTable,
        forwarder: Forwarder,
        *,
        name: str,
        max_bytes: int | None,
        slot_timeout_s: float,
    ) -> None:
        self._channel, self._table, self._forwarder = channel, table, forwarder
        self._name, self._max_bytes, self._slot_timeout_s = name, max_bytes, slot_timeout_s
        self._leases: dict[int, tuple[Slot, Lease]] = {}
        self._operations: dict[str, Callable[[dict[str, Any]], dict[str, Any] | None]] = {
            "offer": self._offer,
            "versions": lambda _: self._versions(),
            "lease": self._lease,
            "release": self._release,
            "renew": self._renew,
            "pull": self._pull,
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
                raise  # the two ends may disagree about what comes next
        else:
            if answer is not None:
                self._channel.send(answer)

    def release_all(self) -> None:
        """Give everything back."""
        for slot, lease in self._leases.values():
            self._table.release(slot, lease)
        self._leases.clear()

    def _offer(self, message: dict[str, Any]) -> None:
        manifest = Manifest.from_wire(message.get("manifest"), max_bytes=self._max_bytes)
        receive_version(self._channel, self._table, manifest, self._slot_timeout_s)

    def _versions(self) -> dict[str, Any]:
        return {"versions": self._table.versions()}

    def _lease(self, message: dict[str, Any]) -> dict[str, Any]:
        process = None
        if (pid := message.get("pid")) is not None:
            namespace, started = message.get("namespace"), message.get("started")
            if not isinstance(namespace, str) or type(pid) is not int or not isinstance(started, int | None):
                raise ProtocolError(f"pid: found {pid!r}, expected it with started and namespace")
            process = ProcessId(pid, started, namespace)
        slot, lease = self._table.lease(
            _version(message),
            wait_s=_seconds(message, "wait_s"),
            hold_s=_seconds(message, "hold_s"),
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
            "checksums": publication.checksums,
        }

    def _release(self, message: dict[str, Any]) -> dict[str, Any]:
        slot, lease = self._held(message)
        del self._leases[lease.id]
        return {"kept": self._table.release(slot, lease)}

    def _renew(self, message: dict[str, Any]) -> dict[str, Any]:
        return {"kept": self._table.renew(*self._held(message), _seconds(message, "hold_s"))}

    def _pull(self, message: dict[str, Any]) -> None:
        slot, lease = self._table.lease(
            _version(message),
            wait_s=_seconds(message, "wait_s"),
            hold_s=math.inf,  # the transfer has its own deadline
            holder=f"{self._channel.peer} pulling",
            process=None,
        )
        try:
            publication = slot.publication
            if publication is None:
                raise RuntimeError("a leased slot has a publication")
            self._channel.send({"manifest": publication.manifest.to_wire()})
            stream_version(self._channel, publication.manifest, slot.memory, publication.checksums)
        finally:
            self._table.release(slot, lease)

    def _set_next(self, message: dict[str, Any]) -> dict[str, Any]:
        address = message.get("address")
        if address is not None:
            parse_address(str(address))
        self._forwarder.set_next(None if address is None else str(address))
        return {"ok": True}

    def _status(self) -> dict[str, Any]:
        return {
            "name": self._name,
            "pid": os.getpid(),
            "versions": [version for version, _ in self._table.versions()],
            **self._table.status(),
            **self._forwarder.status(),
        }

    def _held(self, message: dict[str, Any]) -> tuple[Slot, Lease]:
        lease = message.get("lease")
        held = self._leases.get(lease) if type(lease) is int else None
        if held is None:
            raise LeaseExpired(f"found no lease {message.get('lease')!r} on this connection")
        return held


def _version(message: dict[str, Any]) -> int:
    version = message.get("version")
    if type(version) is not int:
        raise ProtocolError(f"version: found {version!r}, expected an integer")
    return version


def _seconds(message: dict[str, Any], field: str) -> float:
    value = message.get(field)
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= _MAX_WAIT_S:
        raise ProtocolError(f"{field}: found {value!r}, expected seconds from 0 to {_MAX_WAIT_S:.0f}")
    return float(value)
