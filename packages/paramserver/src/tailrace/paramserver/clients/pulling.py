"""A pull over the network that resumes where it stopped, from any relay that has the version."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterable

from tailrace.paramserver.errors import RelayTimeout
from tailrace.paramserver.manifest import Manifest
from tailrace.paramserver.wire.agreement import Offer, OfferAnswer
from tailrace.paramserver.wire.capabilities import Means
from tailrace.paramserver.wire.channel import Channel
from tailrace.paramserver.wire.counts import TrafficCounts
from tailrace.paramserver.wire.receiving import Intake, receive_chunks


class ArrivingVersion:
    """A version on its way into local memory (see `Sink`).

    Args:
        manifest: the version.
        view: memory for it.
    """

    def __init__(self, manifest: Manifest, view: memoryview) -> None:
        self.manifest, self.view = manifest, view
        self.checksums: dict[int, int] = {}

    def progress(self) -> None:
        """The connection's own deadline is enough."""

    def arrived(self, index: int, checksum: int) -> None:
        self.checksums[index] = checksum


class Puller:
    """Receives versions into memory of this process, and keeps the received part of an interrupted one.

    Args:
        means: transports that it can read from.
        counts: totals to which everything received is added.
        max_bytes: the largest version to accept.
    """

    def __init__(self, means: Means, counts: TrafficCounts, max_bytes: int | None) -> None:
        self._means, self._counts, self._max_bytes = means, counts, max_bytes
        self._spare: mmap.mmap | None = None
        self._partial: ArrivingVersion | None = None

    def pull(
        self, channel: Channel, answer: dict[str, object], chunks: Callable[[Manifest], Iterable[int]]
    ) -> ArrivingVersion:
        """Receive what is missing of the version that a relay offers in answer to a pull.

        Args:
            chunks: the chunks that are needed.

        Raises:
            ChunkDamaged: a chunk came damaged too often.
            ParamServerError: the offer is none, or the connection broke. What arrived is kept for the next pull.
        """
        offer = Offer.from_wire(answer, max_bytes=self._max_bytes)
        manifest = offer.manifest
        if self._partial is None or self._partial.manifest != manifest:
            self._partial = None  # its view on the spare memory, too
            self._partial = ArrivingVersion(manifest, self._local_memory(manifest.total_bytes))
        pulled = self._partial
        missing = [index for index in chunks(manifest) if index not in pulled.checksums]
        transport, source = self._means.open(offer.transports)
        intake = Intake(source)
        try:
            channel.send(OfferAnswer(tuple(missing), transport).to_wire())
            if not receive_chunks(channel, manifest, missing, pulled, intake, self._counts):
                raise RelayTimeout(f"{channel.peer} stopped sending version {manifest.version}")
            channel.send({"complete": True})
        finally:
            intake.close()
        self._partial = None
        return pulled

    def close(self) -> None:
        """Forget everything. Memory goes when no tensor refers to it."""
        self._spare = self._partial = None

    def _local_memory(self, nbytes: int) -> memoryview:
        """Memory for a pull: that of the last one, unless it is too small or a tensor still refers to it."""
        if self._spare is not None and len(self._spare) >= nbytes:
            try:
                self._spare.resize(len(self._spare))  # refused while there are views on it
                return memoryview(self._spare)[:nbytes]
            except (BufferError, SystemError):  # SystemError: this platform cannot tell
                pass
        self._spare = mmap.mmap(-1, max(mmap.PAGESIZE, nbytes))
        return memoryview(self._spare)[:nbytes]
