"""Hashes arrived bytes on a second thread, while the first receives the next ones.

    consumes     pieces of a chunk, as they arrive
    waits for    the next piece
    unblocked by a piece, `BackgroundHash.close`

Receiving is a copy out of the kernel, which takes a whole core; hashing after it on the same core makes a pull a quarter
slower. The pieces are hashed while they are in the cache that the cores share. The thread computes and nothing else: it
keeps no time and touches no connection, so it needs nothing of the machine.
"""

from __future__ import annotations

import threading
from queue import SimpleQueue

import xxhash

#: Smaller chunks are hashed where they are received: waking a thread takes longer than hashing them.
WORTH_BYTES = 8 * 2**20
#: Handed over at a time: more often costs more switches between threads than waiting for the last piece does.
PIECE_BYTES = 4 * 2**20


class BackgroundHash:
    """A thread that hashes, started by the first chunk. Close it."""

    def __init__(self) -> None:
        self._work: SimpleQueue[BackgroundHasher | tuple[BackgroundHasher, memoryview] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def chunk(self, part: memoryview) -> BackgroundHasher:
        """The hasher of a chunk that arrives in this memory, from its first byte to its last."""
        if self._thread is None:
            self._thread = threading.Thread(target=_run, args=(self._work,), name="tailrace hash", daemon=True)
            self._thread.start()
        return BackgroundHasher(self._work, part)

    def close(self) -> None:
        """End the thread once its work is done; then it no longer reads the memory. A second call does nothing."""
        if self._thread is not None:
            self._work.put(None)
            self._thread.join()
            self._thread = None


class BackgroundHasher:
    """The checksum of one chunk."""

    def __init__(
        self, work: SimpleQueue[BackgroundHasher | tuple[BackgroundHasher, memoryview] | None], part: memoryview
    ) -> None:
        self._work, self._part = work, part
        self._arrived = self._given = 0
        self._hash = xxhash.xxh3_64()
        self._done: SimpleQueue[int] = SimpleQueue()

    def arrived(self, nbytes: int) -> None:
        """Note that more bytes are in place."""
        self._arrived += nbytes
        if self._arrived - self._given >= PIECE_BYTES:
            self._give()

    def value(self) -> int:
        """The checksum of the arrived bytes."""
        if self._arrived > self._given:
            self._give()
        self._work.put(self)
        return self._done.get()

    def update(self, piece: memoryview) -> None:
        """Hash a piece (on the hashing thread)."""
        self._hash.update(piece)

    def finish(self) -> None:
        """Finish after the last piece (on the hashing thread)."""
        self._done.put(int(self._hash.intdigest()))

    def _give(self) -> None:
        self._work.put((self, self._part[self._given : self._arrived]))
        self._given = self._arrived


def _run(work: SimpleQueue[BackgroundHasher | tuple[BackgroundHasher, memoryview] | None]) -> None:
    while (item := work.get()) is not None:
        if isinstance(item, BackgroundHasher):
            item.finish()
        else:
            item[0].update(item[1])
        del item  # its view would keep the memory from being resized
