"""Transports by name, and which one two peers use.

Built-ins and third parties come through the same entry points; only the one that is asked for is imported.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

from tailrace.contracts import PluginError, plugins
from tailrace.paramserver.errors import TransportUnavailable
from tailrace.paramserver.transport.protocol import GROUP, Transport

#: Payload on the connection itself: no transport at all, and always possible.
INLINE = "inline"
BUILT_IN = {
    "shm": "tailrace.paramserver.transport.shm:SharedMemory",
    "tcp": "tailrace.paramserver.transport.tcp:Tcp",
    "ucx": "tailrace.paramserver.transport.ucx:Ucx",
    "nixl": "tailrace.paramserver.transport.nixl:Nixl",
}


def known() -> list[str]:
    """Names of all registered transports, usable here or not."""
    return sorted({*BUILT_IN, *plugins.names(GROUP)})


def load(name: str, *, host: str = "127.0.0.1") -> Transport:
    """The transport of a name, usable here.

    Args:
        name: one of `known()`.
        host: the address under which readers reach this process.

    Raises:
        TransportUnavailable: nobody registers the name, it does not load, is no transport, or cannot be used here.
    """
    try:
        # The entry points of this package say the same; without its metadata (a source tree) the built-ins work too.
        registered = name in plugins.names(GROUP) or name not in BUILT_IN
        factory: Any = plugins.load(GROUP, name) if registered else _built_in(BUILT_IN[name])
    except PluginError as error:
        if name in known():
            raise TransportUnavailable(str(error)) from error
        raise TransportUnavailable(
            f"found the transport {name[:40]!r}, expected one of {', '.join(known())}, or {INLINE}"
        ) from error
    transport = factory(host=host)
    if not isinstance(transport, Transport):
        raise TransportUnavailable(f"transport {name!r}: found a {type(transport).__name__}, expected a Transport")
    if (why := transport.unavailable()) is not None:
        raise TransportUnavailable(f"transport {name!r} cannot be used here: {why}")
    return transport


def usable(names: Sequence[str], *, host: str = "127.0.0.1") -> list[str]:
    """The names of usable transports among these, in the same order."""
    found = []
    for name in names:
        try:
            load(name, host=host)
        except TransportUnavailable:
            continue
        found.append(name)
    return found


def negotiate(offered: Sequence[str], wanted: Sequence[str], *, same_host: bool = False) -> str:
    """The transport that two peers use.

    On one host that is shared memory if both have it; else the first of `wanted` that is offered too; else the bytes go
    inline, on the connection itself.

    Args:
        offered: the transports that the exporter can use.
        wanted: the transports that the reader asks for, best first; only usable ones (see `usable`).
        same_host: whether both are known to be on one host.
    """
    if same_host and "shm" in offered and "shm" in wanted:
        return "shm"
    return next((name for name in wanted if name in offered and (name != "shm" or same_host)), INLINE)


def _built_in(path: str) -> Any:
    module, _, attribute = path.partition(":")
    return getattr(importlib.import_module(module), attribute)
