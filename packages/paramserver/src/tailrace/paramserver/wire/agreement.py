"""The means of the two ends of a connection, and their agreement on a version before the first chunk.

    sender -> receiver   {"op": "offer", "manifest": {...}, "sealed": false, "relayed": false,
                          "transports": {"shm": {...}}, "codecs": ["delta"], "bases": [[version, stamp], ...], "loan": null}
    receiver -> sender   {"have": true}, or an error, or
                         {"go": true, "missing": [[first, end], ...],
                          "transport": "inline", "codec": null, "base": null}

The receiver chooses, among what the sender can. Whatever it chooses, each chunk is compared with the checksum of the
full chunk before it counts as arrived.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from tailrace.paramserver.codec.choose import LinkEncoder
from tailrace.paramserver.codec.registry import available, codec
from tailrace.paramserver.errors import ParamServerError, ProtocolError, TransportUnavailable
from tailrace.paramserver.machine.host import ThisHost
from tailrace.paramserver.machine.protocol import HostInterface
from tailrace.paramserver.manifest import Manifest
from tailrace.paramserver.transport.protocol import INLINE, Exportable, RemoteMemory, Transport, load, negotiate, usable


def to_ranges(indices: Iterable[int]) -> list[list[int]]:
    """Ascending indices as ranges `[first, end]`, `end` not included."""
    ranges = list[list[int]]()
    for index in indices:
        if ranges and ranges[-1][1] == index:
            ranges[-1][1] = index + 1
        else:
            ranges.append([index, index + 1])
    return ranges


def from_ranges(value: object, count: int) -> list[int]:
    """The indices, ascending. Nothing is expanded before every range is known to be one.

    Args:
        value: the value that a peer sent.
        count: how many chunks there are.

    Raises:
        ProtocolError: these are not ascending ranges apart from each other, of chunks 0 to `count`.
    """
    if not isinstance(value, list) or len(value) > count:
        raise ProtocolError(f"found {str(value)[:60]} as ranges of chunks, expected a list of at most {count}")
    last = 0
    for item in value:
        if not isinstance(item, list) or [*map(type, item)] != [int, int] or not last <= item[0] < item[1] <= count:
            raise ProtocolError(
                f"found the range {str(item)[:60]} of chunks, expected [first, end] from {last} to {count}"
            )
        last = item[1]
    return [index for first, end in value for index in range(first, end)]


_MAX_NAMES = 64
#: No transport: the chunks lie in the receiver's memory already, which only has to hash them.
IN_PLACE = "in place"


@dataclass(frozen=True, slots=True)
class Offer:
    """A version, and how its sender can send it.

    Args:
        manifest: the version.
        sealed: whether it must not be visible yet.
        transports: descriptors of the sender's exported memory, by transport.
        codecs: the codecs that the sender can encode with.
        bases: versions of the same layout that the sender holds.
        relayed: the sender is a relay, not the publisher.
        loan: the version lies in memory of the receiver's that the sender borrowed under this number, or None.
    """

    manifest: Manifest
    sealed: bool = False
    transports: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    codecs: tuple[str, ...] = ()
    bases: tuple[tuple[int, int], ...] = ()
    relayed: bool = False
    loan: int | None = None

    def to_wire(self) -> dict[str, Any]:
        """The message as a JSON object."""
        return {
            "op": "offer",
            "manifest": self.manifest.to_wire(),
            "sealed": self.sealed,
            "relayed": self.relayed,
            "transports": {name: dict(descriptor) for name, descriptor in self.transports.items()},
            "codecs": list(self.codecs),
            "bases": [list(key) for key in self.bases],
            "loan": self.loan,
        }

    @classmethod
    def from_wire(cls, data: Mapping[str, Any], *, max_bytes: int | None = None) -> Offer:
        """An offer that a peer made. Fields that it left out are empty.

        Raises:
            ManifestInvalid, ProtocolError: it is none.
        """
        manifest = Manifest.from_wire(data.get("manifest"), max_bytes=max_bytes)
        sealed, relayed = data.get("sealed", False), data.get("relayed", False)
        transports = data.get("transports", {})
        codecs, bases = data.get("codecs", []), data.get("bases", [])
        for name, value in (("sealed", sealed), ("relayed", relayed)):
            if type(value) is not bool:
                raise ProtocolError(f"{name}: found {str(value)[:40]!r}, expected true or false")
        if (
            not isinstance(transports, dict)
            or len(transports) > _MAX_NAMES
            or not all(isinstance(descriptor, dict) for descriptor in transports.values())
        ):
            raise ProtocolError(f"transports: found {str(transports)[:60]}, expected descriptors by name")
        if not isinstance(codecs, list) or len(codecs) > _MAX_NAMES or not all(isinstance(c, str) for c in codecs):
            raise ProtocolError(f"codecs: found {str(codecs)[:60]}, expected names")
        if not isinstance(bases, list) or len(bases) > _MAX_NAMES:
            raise ProtocolError(f"bases: found {str(bases)[:60]}, expected versions with stamps")
        keys = tuple(key_from_wire(base, "bases") for base in bases)
        loan = data.get("loan")
        if loan is not None and type(loan) is not int:
            raise ProtocolError(f"loan: found {str(loan)[:40]!r}, expected an integer or null")
        return cls(manifest, sealed, transports, tuple(codecs), keys, relayed, loan)


@dataclass(frozen=True, slots=True)
class OfferAnswer:
    """The part of an offer that the receiver wants, and how.

    Args:
        missing: chunks that it lacks, ascending.
        transport: the transport that it reads with; `INLINE` for bytes on the connection.
        codec: the codec to encode with against `base`, or None.
        base: key of the version that both hold, or None.
    """

    missing: tuple[int, ...]
    transport: str = INLINE
    codec: str | None = None
    base: tuple[int, int] | None = None

    def to_wire(self) -> dict[str, Any]:
        """The message as a JSON object."""
        return {
            "go": True,
            "missing": to_ranges(self.missing),
            "transport": self.transport,
            "codec": self.codec,
            "base": None if self.base is None else list(self.base),
        }

    @classmethod
    def from_wire(cls, data: Mapping[str, Any], offer: Offer) -> OfferAnswer | None:
        """A peer's answer to an offer; None if it has the version already.

        Raises:
            ProtocolError: it chose what was not offered.
        """
        if data.get("have") is True:
            return None
        if data.get("go") is not True:
            raise ProtocolError(f"found the answer {str(data)[:60]} to an offer, expected have or go")
        missing = from_ranges(data.get("missing"), offer.manifest.chunk_count)
        transport, codec, base = data.get("transport", INLINE), data.get("codec"), data.get("base")
        known = {INLINE, *offer.transports, *((IN_PLACE,) if offer.loan is not None else ())}
        if not isinstance(transport, str) or transport not in known:
            raise ProtocolError(f"transport: found {str(transport)[:40]!r}, expected one of {sorted(known)}")
        if codec is None:
            return cls(tuple(missing), transport)
        key = key_from_wire(base, "base")
        if codec not in offer.codecs or key not in offer.bases:
            raise ProtocolError(f"found the codec {str(codec)[:40]!r} on the base {key}, expected what was offered")
        return cls(tuple(missing), transport, str(codec), key)


def key_from_wire(value: object, where: str) -> tuple[int, int]:
    """A version and its stamp that a peer sent.

    Raises:
        ProtocolError: it is none.
    """
    if not isinstance(value, list) or [*map(type, value)] != [int, int] or min(value) < 0:
        raise ProtocolError(f"{where}: found {str(value)[:60]}, expected a version and its stamp")
    return (value[0], value[1])


_log = logging.getLogger(__name__)
_OPEN_S = 2.0
#: Below this, setting a transport up takes longer than sending the bytes on the connection that is there.
WORTH_BYTES = 4 * 2**20


class Means:
    """The transports and codecs of one end, besides raw chunks on the connection itself, which always work.

    Args:
        transports: names, best first (`tailrace.paramserver.transport.protocol`), used for versions of any size. None takes
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
