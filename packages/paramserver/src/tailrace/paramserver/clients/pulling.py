"""A pull over the network that goes on where it stopped, from whichever relay has the version."""

from __future__ import annotations

import mmap

from tailrace.paramserver.errors import RelayTimeout
from tailrace.paramserver.manifest import Manifest
from tailrace.paramserver.wire.agreement import Answer, Offer
from tailrace.paramserver.wire.channel import Channel
from tailrace.paramserver.wire.counts import Counts
from tailrace.paramserver.wire.means import Means
from tailrace.paramserver.wire.receiving import Intake, receive_chunks


class Pulled:
    """A version on its way into local memory (see `Sink`).

    Args:
        manifest: the version.
        view: memory for it.
    """

    def __init__(self, manifest: Manifest, view: memoryview) -> None:
        self.manifest, self.view = manifest, view
        self.checksums: dict[int, int] = {}

    def progress(self) -> None:
        """See `Sink`. The connection's own deadline is enough."""

    def arrived(self, index: int, checksum: int) -> None:
        """See `Sink`."""
        self.checksums[index] = checksum

    def in_order(self) -> list[int]:
        """The checksums of all chunks, once they are there."""
        return [self.checksums[index] for index in range(self.manifest.chunk_count)]


class Puller:
    """Receives versions into memory of this process, and keeps what it has of one that was interrupted.

    Args:
        means: transports that it can read from.
        counts: what it receives is added to these.
        max_bytes: the largest version to accept.
    """

    def __init__(self, means: Means, counts: Counts, max_bytes: int | None) -> None:
        self._means, self._counts, self._max_bytes = means, counts, max_bytes
        self._spare: mmap.mmap | None = None
        self._partial: Pulled | None = None

    def pull(self, channel: Channel, answer: dict[str, object]) -> Pulled:
        """Receive what is missing of the version that a relay offers in answer to a pull.

        Raises:
            ChunkDamaged: a chunk came damaged too often.
            ParamServerError: the offer is none, or the connection broke. What arrived is kept for the next pull.
        """
        offer = Offer.from_wire(answer, max_bytes=self._max_bytes)
        manifest = offer.manifest
        if self._partial is None or self._partial.manifest != manifest:
            self._partial = None  # its view on the spare memory, too
            self._partial = Pulled(manifest, self._local_memory(manifest.total_bytes))
        pulled = self._partial
        missing = [index for index in range(manifest.chunk_count) if index not in pulled.checksums]
        transport, source = self._means.open(offer.transports)
        intake = Intake(source)
        try:
            channel.send(Answer(tuple(missing), transport).to_wire())
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
