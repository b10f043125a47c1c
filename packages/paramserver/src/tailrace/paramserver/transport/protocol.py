"""The protocol of a transport, and transports by name: one side exports memory, the other reads ranges of it.

    exporter                                      reader
    export = transport.export(memory)
    export.descriptor  ── over the connection ──► source = transport.open(descriptor, timeout_s=5)
                                                  source.read_into(view, offset, timeout_s)     any number of times
                                                  source.close()
    export.close()

Who may read what, and when its bytes are final, is agreed on the authenticated connection that carries the descriptor. A
transport only moves bytes, and what it moved is checked against checksums that came on that connection.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from tailrace.contracts import PluginError, plugins
from tailrace.paramserver.errors import TransportUnavailable

#: The entry-point group. What an entry point names is called with `host=` and returns a `Transport`.
GROUP = "tailrace.transport"


class Exportable(Protocol):
    """Memory that others may read: a `Segment`, a staging buffer, or the like."""

    @property
    def view(self) -> memoryview:
        """The bytes."""
        ...

    @property
    def fd(self) -> int:
        """The same bytes as a file to the kernel, or negative."""
        ...

    @property
    def name(self) -> str:
        """How messages call it; the name of its segment if it has one."""
        ...


class Export(Protocol):
    """Memory that can be read from elsewhere until `close`."""

    @property
    def descriptor(self) -> dict[str, Any]:
        """The reader's parameters as a JSON object. It has a secret, so send it only to authorised readers."""
        ...

    def close(self) -> None:
        """End the export and free its resources, but not the memory itself. A second call does nothing."""
        ...


class RemoteMemory(Protocol):
    """Another process's exported memory. One thread at a time uses it."""

    def read_into(self, view: memoryview, offset: int, timeout_s: float) -> None:
        """Fill a writable buffer with the bytes from `offset` on.

        After an error the buffer holds anything, and the source can only be closed; after `ProtocolError` for a range
        that sticks out, nothing was written and the source goes on.

        Args:
            view: a contiguous buffer; all of it is filled.
            offset: offset of the first byte in the exported memory.
            timeout_s: deadline in seconds for the whole range.

        Raises:
            ProtocolError: the range sticks out of the exported memory, or the exporter broke the protocol.
            RelayTimeout: it took longer, so the exporter is suspended, cut off or too slow.
            RelayUnreachable: the exporter died, closed the export, or the connection to it broke.
        """
        ...

    def close(self) -> None:
        """Give it back. Twice is no error."""
        ...


@runtime_checkable
class HashingSource(RemoteMemory, Protocol):
    """A source whose reads are copies by this process: it hashes while the bytes are in the processor's cache."""

    def read_hashed(self, view: memoryview, offset: int, timeout_s: float) -> int:
        """See `RemoteMemory.read_into`. Returns the xxh3 64-bit checksum of the written bytes."""
        ...


@runtime_checkable
class Transport(Protocol):
    """One way to read another process's memory.

    A transport is made with `host`, the address under which this process can be reached from the reader.
    """

    name: str

    def unavailable(self) -> str | None:
        """Why it cannot be used here (a package to install, a platform), or None if it can."""
        ...

    def export(self, memory: Exportable) -> Export:
        """Let others read this memory.

        Raises:
            TransportUnavailable: it cannot be used here, or cannot export this kind of memory.
        """
        ...

    def open(self, descriptor: Mapping[str, Any], *, timeout_s: float) -> RemoteMemory:
        """Reach exported memory. Every field is checked before it is used.

        Raises:
            ProtocolError: the descriptor is malformed, or of another transport.
            AuthenticationFailed: the exporter does not know its secret.
            RelayTimeout: the exporter did not answer in time.
            RelayUnreachable: nobody exports this, or not any more.
            TransportUnavailable: it cannot be used here.
        """
        ...


# Transports by name, and which one two peers use.
#
# Built-ins and third parties come through the same entry points; only the one that is asked for is imported.

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
