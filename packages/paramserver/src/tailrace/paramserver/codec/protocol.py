"""What a codec is: fewer bytes for one chunk, given the same chunk of a version that both ends hold."""

from __future__ import annotations

from typing import Protocol


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
        """What to send in place of a chunk, or None if that is not worth it: send it raw.

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
            payload: what `encode` returned, or anything that a peer sent.
            base: the bytes that were the base.
            into: memory for the chunk, exactly its size, not overlapping `base`.

        Raises:
            PayloadMalformed: the payload is not one for a chunk of this size. Nothing was written.
            CodecUnavailable: see `unavailable`.
        """
        ...
