"""Totals of the connections of one relay, publisher or reader."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass
class TrafficCounts:
    """Totals since the start. Threads add to them without a lock, under the interpreter's own.

    Args:
        chunks_received: chunks that arrived and matched their checksum.
        bytes_received: the bytes of these chunks.
        payload_received: bytes that it took to bring them, of damaged ones too.
        chunks_damaged: chunks that arrived and did not match; they were asked for again.
        chunks_sent: chunks that were sent, each time.
        bytes_sent: the bytes of these chunks.
        payload_sent: bytes that it took on the connection: less with a codec, none with a one-sided transport.
        chunks_resent: the chunks of `chunks_sent` that this sender had sent to the same peer before.
        bytes_resent: the bytes of these chunks.
        chunks_encoded: the chunks of `chunks_sent` that a codec made smaller.
        fallbacks: chunks that a codec or a one-sided transport did not bring, and that came raw instead.
    """

    chunks_received: int = 0
    bytes_received: int = 0
    payload_received: int = 0
    chunks_damaged: int = 0
    chunks_sent: int = 0
    bytes_sent: int = 0
    payload_sent: int = 0
    chunks_resent: int = 0
    bytes_resent: int = 0
    chunks_encoded: int = 0
    fallbacks: int = 0

    def to_wire(self) -> dict[str, int]:
        """The totals as a JSON object."""
        return dataclasses.asdict(self)
