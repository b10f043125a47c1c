"""An export's door on a port, as a descriptor names it: what `tcp`, `ucx` and `nixl` share."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from typing import Any

from tailrace.paramserver.transport.fields import Fields
from tailrace.paramserver.transport.listener import Door, knock
from tailrace.paramserver.wire.address import format_address


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
