"""What one end can use to move chunks: its transports and codecs, and how a receiver chooses among those of a sender."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from tailrace.paramserver.codec.registry import available, codec
from tailrace.paramserver.errors import ParamServerError, TransportUnavailable
from tailrace.paramserver.machine.host import Host
from tailrace.paramserver.machine.protocol import Machine
from tailrace.paramserver.transport.protocol import Exportable, Source, Transport
from tailrace.paramserver.transport.registry import INLINE, load, negotiate, usable
from tailrace.paramserver.wire.agreement import Offer

_log = logging.getLogger(__name__)
_OPEN_S = 2.0
#: Below this, setting a transport up takes longer than sending the bytes on the connection that is there.
WORTH_BYTES = 4 * 2**20


def default_transports(machine: Machine) -> tuple[str, ...]:
    """Shared memory on a real host: it works exactly where the two ends share memory."""
    return tuple(usable(("shm",))) if isinstance(machine, Host) else ()


def default_codecs(machine: Machine) -> tuple[str, ...]:
    """All that can be used here, on a real host: they are used where measurements say that they are faster."""
    return available() if isinstance(machine, Host) else ()


class Means:
    """What one end can use beside raw chunks on the connection itself, which always work.

    Args:
        transports: names, best first (`tailrace.paramserver.transport.registry`).
        codecs: names, best first (`tailrace.paramserver.codec.registry`).
        host: under which this process can be reached.

    Raises:
        TransportUnavailable, CodecUnknown, CodecUnavailable: one of them cannot be used here.
    """

    def __init__(self, transports: Sequence[str] = (), codecs: Sequence[str] = (), *, host: str = "127.0.0.1") -> None:
        self.codecs = tuple(codec(name).name for name in codecs)
        self._transports: dict[str, Transport] = {name: load(name, host=host) for name in transports}

    @contextmanager
    def exported(self, memory: Exportable, nbytes: int) -> Iterator[dict[str, Mapping[str, Any]]]:
        """Descriptors of this memory by transport, valid while the context is open. What cannot export it is left out."""
        with ExitStack() as stack:
            found = dict[str, Mapping[str, Any]]()
            for name, transport in self._transports.items() if nbytes >= WORTH_BYTES else ():
                try:
                    export = transport.export(memory)
                except (TransportUnavailable, OSError) as error:
                    _log.info("transport %s does not export %s: %s", name, memory.name, error)
                    continue
                stack.callback(export.close)
                found[name] = export.descriptor
            yield found

    def choose_codec(
        self, offer: Offer, bases: Sequence[tuple[int, int]]
    ) -> tuple[str, tuple[int, int]] | tuple[None, None]:
        """A codec that both ends have, and the first of our versions of this layout that both hold, or neither."""
        name = next((name for name in self.codecs if name in offer.codecs), None)
        base = next((key for key in bases if key in offer.bases), None)
        return (None, None) if name is None or base is None else (name, base)

    def open(self, offered: Mapping[str, Mapping[str, Any]]) -> tuple[str, Source | None]:
        """The best transport that reaches the sender's memory, and that memory; `INLINE` and None if none does."""
        wanted = [name for name in self._transports if name in offered]
        # Whether both are on one host is for shared memory itself to find out: its `open` fails where they are not.
        while (name := negotiate(list(offered), wanted, same_host=True)) != INLINE:
            try:
                return name, self._transports[name].open(offered[name], timeout_s=_OPEN_S)
            except ParamServerError as error:
                _log.info("transport %s does not reach the sender: %s", name, error)
                wanted.remove(name)
        return INLINE, None
