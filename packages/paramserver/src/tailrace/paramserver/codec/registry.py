"""The protocol of a codec, which shrinks a chunk by means of the same chunk of another version; codecs by name."""

from __future__ import annotations

from typing import Protocol

from tailrace.paramserver.codec.delta import DeltaCodec
from tailrace.paramserver.errors import CodecUnavailable, CodecUnknown


class Codec(Protocol):
    """Encodes a chunk against a base, exactly: what `decode` writes is what `encode` was given, bit for bit.

    A codec keeps no state between chunks, and threads may share it. The receiver still compares the decoded chunk with
    the checksum of the full chunk: a codec can notice that a payload is no payload, not that a base differs.
    """

    @property
    def name(self) -> str:
        """Its name in the registry and on the wire."""
        ...

    def unavailable(self) -> str | None:
        """Why it cannot be used here, or None if it can."""
        ...

    def encode(self, base: memoryview, new: memoryview) -> bytes | None:
        """The bytes to send instead of a chunk; None to send it raw, since encoding does not pay.

        Args:
            base: the same chunk of a version that the receiver holds completely, `len(new)` bytes. With any other
                size the answer is None.
            new: the chunk, as contiguous bytes.

        Raises:
            CodecUnavailable: see `unavailable`.
        """
        ...

    def decode(self, payload: memoryview, base: memoryview, into: memoryview) -> None:
        """Write the chunk that was encoded.

        Args:
            payload: the result of `encode`, or any bytes that a peer sent.
            base: the bytes that were the base.
            into: memory for the chunk, exactly its size, not overlapping `base`.

        Raises:
            PayloadMalformed: the payload is not one for a chunk of this size. Nothing was written.
            CodecUnavailable: see `unavailable`.
        """
        ...


_CODECS: dict[str, Codec] = {built_in.name: built_in for built_in in (DeltaCodec(),)}


def codec(name: object) -> Codec:
    """The codec of a name; the name may come from a peer.

    Raises:
        CodecUnknown: there is none.
        CodecUnavailable: it needs something that is not installed here.
    """
    found = _CODECS.get(name) if isinstance(name, str) else None
    if found is None:
        raise CodecUnknown(f"found the codec {str(name)[:40]!r}, expected one of {', '.join(sorted(_CODECS))}")
    missing = found.unavailable()
    if missing is not None:
        raise CodecUnavailable(f"the codec {found.name!r} cannot be used here: {missing}")
    return found


def available() -> tuple[str, ...]:
    """Names of the codecs that can be used here, sorted, to offer to a peer."""
    return tuple(sorted(name for name, found in _CODECS.items() if found.unavailable() is None))
