"""The agreement between sender and receiver of a version before the first chunk.

    sender -> receiver   {"op": "offer", "manifest": {...}, "sealed": false, "relayed": false,
                          "transports": {"shm": {...}}, "codecs": ["delta"], "bases": [[version, stamp], ...], "loan": null}
    receiver -> sender   {"have": true}, or an error, or
                         {"go": true, "missing": [[first, end], ...],
                          "transport": "inline", "codec": null, "base": null}

The receiver chooses, among what the sender can. Whatever it chooses, each chunk is compared with the checksum of the
full chunk before it counts as arrived.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tailrace.paramserver.errors import ProtocolError
from tailrace.paramserver.manifest import Manifest
from tailrace.paramserver.transport.registry import INLINE


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
