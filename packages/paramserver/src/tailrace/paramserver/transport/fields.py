"""An export's descriptor, each field checked as it is read, and the ranges of exported memory that a peer may name."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from typing import Any

from tailrace.paramserver.errors import ProtocolError, TransportUnavailable
from tailrace.paramserver.transport.device import DeviceMemory
from tailrace.paramserver.transport.listener import SECRET_BYTES, Door, knock
from tailrace.paramserver.transport.protocol import Exportable
from tailrace.paramserver.wire.address import format_address

_MAX_BYTES = 2**48


class Fields:
    """The fields of a descriptor, each checked as it is read.

    Args:
        transport: the transport that it must be of.
        descriptor: the value received from a peer.

    Raises:
        ProtocolError: from the constructor and every method: what was found, what was expected.
    """

    def __init__(self, transport: str, descriptor: Mapping[str, Any]) -> None:
        if not isinstance(descriptor, Mapping):
            raise ProtocolError(f"found a {type(descriptor).__name__}, expected a descriptor of exported memory")
        self._transport, self._data = transport, descriptor
        if descriptor.get("transport") != transport:
            raise self._wrong("transport", repr(transport))

    def text(self, field: str, limit: int = 256) -> str:
        """A short text."""
        value = self._data.get(field)
        if not isinstance(value, str) or not 0 < len(value) <= limit or not value.isprintable():
            raise self._wrong(field, f"1 to {limit} printable characters")
        return value

    def number(self, field: str, low: int, high: int) -> int:
        """An integer in a range."""
        value = self._data.get(field)
        if type(value) is not int or not low <= value <= high:
            raise self._wrong(field, f"an integer from {low} to {high}")
        return value

    def nbytes(self) -> int:
        """The size of the exported memory."""
        return self.number("nbytes", 0, _MAX_BYTES)

    def port(self) -> int:
        """A TCP port."""
        return self.number("port", 1, 65535)

    def secret(self) -> str:
        """The export's secret."""
        value = self._data.get("secret")
        if not isinstance(value, str) or len(value) != 2 * SECRET_BYTES or set(value) - set("0123456789abcdef"):
            raise ProtocolError(  # without what was found: it may be one
                f"secret: the descriptor of a {self._transport} export has none of {2 * SECRET_BYTES} hex digits"
            )
        return value

    def _wrong(self, field: str, expected: str) -> ProtocolError:
        found = str(self._data.get(field))[:40]
        return ProtocolError(
            f"{field}: found {found!r} in the descriptor of a {self._transport} export, expected {expected}"
        )


def check_range(view: memoryview, offset: int, size: int) -> None:
    """Refuse to read outside of exported memory, or into memory that cannot be written.

    Raises:
        ProtocolError: the range sticks out, or the buffer is read-only or has gaps.
    """
    if type(offset) is not int or offset < 0 or offset + view.nbytes > size:
        raise ProtocolError(f"found a range of {view.nbytes} bytes at {offset!r}, expected it within {size} bytes")
    if view.readonly or not view.c_contiguous:
        raise ProtocolError("found a read-only buffer or one with gaps, expected a writable contiguous one")


def check_host_memory(transport: str, memory: Exportable) -> None:
    """Refuse device memory.

    Raises:
        TransportUnavailable: it is on a device.
    """
    if isinstance(memory, DeviceMemory):
        raise TransportUnavailable(
            f"{memory.name!r}: found memory of a device, which {transport} cannot export; use ucx or nixl"
        )


def described(transport: str, listener: socket.socket, door: Door, nbytes: int) -> dict[str, Any]:
    """The descriptor of an export of `nbytes` bytes behind a door on a port."""
    host, port = listener.getsockname()[:2]
    return {"transport": transport, "host": host, "port": port, "nbytes": nbytes, "secret": door.secret}


def enter(transport: str, descriptor: Mapping[str, Any], timeout_s: float) -> tuple[socket.socket, int, str]:
    """Go to the door that a descriptor names: the connection, the export's size in bytes, and the door's address.

    Raises:
        ParamServerError: the descriptor is malformed, or nobody lets us in.
    """
    fields = Fields(transport, descriptor)
    host, port, nbytes, secret = fields.text("host"), fields.port(), fields.nbytes(), fields.secret()
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return knock(family, (host, port), secret, timeout_s), nbytes, format_address(host, port)
