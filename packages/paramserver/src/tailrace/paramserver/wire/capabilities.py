"""The transports and codecs of one end, and how a receiver chooses among those of a sender."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from tailrace.paramserver.codec.choose import LinkEncoder
from tailrace.paramserver.codec.registry import available, codec
from tailrace.paramserver.errors import ParamServerError, TransportUnavailable
from tailrace.paramserver.machine.host import ThisHost
from tailrace.paramserver.machine.protocol import HostInterface
from tailrace.paramserver.transport.protocol import Exportable, RemoteMemory, Transport
from tailrace.paramserver.transport.registry import INLINE, load, negotiate, usable
from tailrace.paramserver.wire.agreement import Offer

_log = logging.getLogger(__name__)
_OPEN_S = 2.0
#: Below this, setting a transport up takes longer than sending the bytes on the connection that is there.
WORTH_BYTES = 4 * 2**20


class Means:
    """The transports and codecs of one end, besides raw chunks on the connection itself, which always work.

    Args:
        transports: names, best first (`tailrace.paramserver.transport.registry`), used for versions of any size. None takes
            shared memory on a real host, where a version is worth it: it works exactly where the two ends share memory.
        codecs: names, best first (`tailrace.paramserver.codec.registry`). None takes, on a real host, all that can be used.
        machine: the machine that it runs on.
        host: under which this process can be reached.
        always_encode: encode whatever can be, and not only where that was measured to be faster.

    Raises:
        TransportUnavailable, CodecUnknown, CodecUnavailable: one of them cannot be used here.
    """

    def __init__(
        self,
        transports: Sequence[str] | None,
        codecs: Sequence[str] | None,
        machine: HostInterface,
        *,
        host: str = "127.0.0.1",
        always_encode: bool = False,
    ) -> None:
        real = isinstance(machine, ThisHost)
        self._worth_bytes, self._always_encode = WORTH_BYTES if transports is None else 0, always_encode
        if transports is None:
            transports = usable(("shm",)) if real else ()
        if codecs is None:
            codecs = available() if real else ()
        self.codecs = tuple(codec(name).name for name in codecs)
        self._transports: dict[str, Transport] = {name: load(name, host=host) for name in transports}

    def encoder(self, now: Callable[[], float]) -> LinkEncoder:
        """The codecs of one sender towards one receiver."""
        return LinkEncoder(now, always=self._always_encode)

    @contextmanager
    def exported(self, memory: Exportable, nbytes: int) -> Iterator[dict[str, Mapping[str, Any]]]:
        """Descriptors of this memory by transport, valid while the context is open. Unable transports are left out."""
        with ExitStack() as stack:
            found = dict[str, Mapping[str, Any]]()
            for name, transport in self._transports.items() if nbytes >= self._worth_bytes else ():
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
        """A codec that both ends have, and the first local version of this layout that both have; or neither."""
        name = next((name for name in self.codecs if name in offer.codecs), None)
        base = next((key for key in bases if key in offer.bases), None)
        return (None, None) if name is None or base is None else (name, base)

    def open(self, offered: Mapping[str, Mapping[str, Any]]) -> tuple[str, RemoteMemory | None]:
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
