"""The trainer's side of a publication: memory that is reused, into which weights are copied once, and the version in it."""

from __future__ import annotations

import errno
import mmap
import os
import tempfile
from collections.abc import Callable, ItemsView, Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from tailrace.paramserver.clients.loans import Borrowed
from tailrace.paramserver.clients.share import Share
from tailrace.paramserver.errors import ManifestInvalid, NotEnoughSharedMemory
from tailrace.paramserver.manifest import Manifest, TensorSpec, aligned, checksum
from tailrace.paramserver.tensors import TensorSource, source
from tailrace.paramserver.wire.sending import SendableMemory

_FIRST_BYTES = 2**20


class StagingBuffer:
    """Memory that grows to the size of a version and is reused; an unnamed file, so that the kernel can send from it.

    In its place may stand memory that the relay lends (`use`): what fits there is copied there.
    """

    def __init__(self) -> None:
        self.name = "the publisher's staging memory"
        self.borrowed: Borrowed | None = None
        self._fd = _unnamed_file()
        self._size = 0
        self._map: mmap.mmap | None = None
        self._own = memoryview(b"")

    @property
    def fd(self) -> int:
        """The same bytes as a file."""
        return self._fd if self.borrowed is None else self.borrowed.segment.fd

    @property
    def view(self) -> memoryview:
        """The bytes."""
        return self._own if self.borrowed is None else self.borrowed.segment.view

    def use(self, borrowed: Borrowed | None) -> None:
        """Choose the memory to fill next: this memory of the relay's, or the publisher's own, freed while unused."""
        self.borrowed = borrowed
        if borrowed is not None and self._size:
            # A new file, instead of truncating the old one, which would kill processes that still read it.
            os.close(self._fd)
            self._fd, self._size, self._map, self._own = _unnamed_file(), 0, None, memoryview(b"")

    def fill(self, weights: Iterable[tuple[str, Any]], version: int, chunk_bytes: int) -> Manifest:
        """Copy weights in, one after the other, and describe them. The manifest's stamp is still 0.

        A tensor whose memory was seen under another name is not copied again; its name goes to `Manifest.tied`.

        Raises:
            ManifestInvalid: a name repeats, or a tensor is of an unsupported kind.
            NotEnoughSharedMemory: they do not fit in memory.
        """
        specs, tied, end = list[TensorSpec](), dict[str, str](), 0
        seen: dict[tuple[Any, ...], tuple[TensorSpec, Callable[[], object]]] = {}
        for name, value in weights:
            item = source(name, value)
            known, lasts = seen.get(item.memory), item.lasting or isinstance(weights, list)
            # A generator may free a tensor and reuse its address for the next one: only a living one can be tied. It may also
            # fill one tensor again and again.
            if known is not None and item.nbytes and known[1]() is not None and (lasts or self._holds(known[0], item)):
                tied[name] = known[0].name
                continue
            end = self._append(specs, name, item, end)
            seen[item.memory] = (specs[-1], item.alive)
        if not specs:
            raise ManifestInvalid("found no tensors to publish, expected at least one")
        manifest = Manifest(version, 0, chunk_bytes, end, tuple(specs), tied)
        return Manifest.from_wire(manifest.to_wire())  # a relay would refuse it later, where the trainer cannot see it

    def fill_share(self, weights: Iterable[tuple[str, Any]], share: Share) -> None:
        """Copy a share to its place in memory of the whole version; only the share's part uses physical memory.

        Raises:
            ManifestInvalid, LayoutMismatch: the weights are not those of the share.
            NotEnoughSharedMemory: they do not fit in memory.
        """
        if self._size < share.manifest.total_bytes:
            self._grow(share.manifest.total_bytes, share.extent)
        share.copy(weights, self._own)

    def close(self) -> None:
        """Give the memory back."""
        self.borrowed = None
        if self._fd >= 0:
            os.close(self._fd)
            self._fd, self._own = -1, memoryview(b"")

    def _holds(self, spec: TensorSpec, item: TensorSource) -> bool:
        """Whether a tensor is what was copied as another one."""
        now = memoryview(bytearray(item.nbytes))
        item.copy_to(now)
        return checksum(now) == checksum(self.view[spec.offset : spec.offset + spec.nbytes])

    def _append(self, specs: list[TensorSpec], name: str, item: TensorSource, end: int) -> int:
        offset = aligned(end)
        self._reserve(offset + item.nbytes, end)
        item.copy_to(self.view[offset : offset + item.nbytes])
        specs.append(TensorSpec(name, item.dtype, item.shape, offset, item.nbytes))
        return offset + item.nbytes

    def _reserve(self, nbytes: int, filled: int) -> None:
        if self.borrowed is not None and nbytes <= self.borrowed.segment.size:
            return
        if self.borrowed is not None:  # it is larger than was thought: on with memory of our own
            before, self.borrowed = self.borrowed.segment.view, None
            self._grow(nbytes)
            self._own[:filled] = before[:filled]
        elif nbytes > self._size:
            self._grow(nbytes)

    def _grow(self, nbytes: int, used: tuple[int, int] | None = None) -> None:
        """Make room.

        Args:
            used: the bytes that will be written; None: all.
        """
        size = max(_FIRST_BYTES, nbytes, 2 * self._size if self._size < 2**30 else self._size + 2**30)
        size = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
        first, last = (0, size) if used is None else used
        try:
            os.ftruncate(self._fd, size)
            if hasattr(os, "posix_fallocate") and last > first:
                os.posix_fallocate(self._fd, first, last - first)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.ENOMEM, errno.EFBIG):
                raise
            raise NotEnoughSharedMemory(
                f"found too little memory to stage {nbytes} bytes ({error.strerror})"
            ) from error
        self._own = memoryview(b"")
        self._map = _grown(self._map, self._fd, size)
        self._own, self._size = memoryview(self._map), size


class StagedState(StrEnum):
    """Lifecycle of a staged version; owned by the publisher. WAITING to be pushed; HELD once it was.

    SENT: this publisher's share is there, and the others' are waited for.
    """

    EMPTY = "empty"
    FILLING = "filling"
    WAITING = "waiting"
    PUSHING = "pushing"
    SENT = "sent"
    HELD = "held"


@dataclass(eq=False)
class Staged:
    """A staging buffer and the version in it.

    Args:
        memory: the buffer.
        state: see `StagedState`.
        manifest: the version's manifest.
        checksums: the known checksums of its chunks. They outlive a failed push.
        sent: chunks that the present master was sent.
        pinned: the stamp that the caller chose, if it did.
        sealed: the version must not be visible yet.
        share: the part of the version that this publisher has; None: all of it.
    """

    memory: StagingBuffer
    state: StagedState = StagedState.EMPTY
    manifest: Manifest | None = None
    checksums: dict[int, int] = field(default_factory=dict)
    sent: set[int] = field(default_factory=set)
    pinned: int | None = None
    sealed: bool = False
    share: Share | None = None

    @property
    def version(self) -> int:
        """Its number, -1 without one."""
        return -1 if self.manifest is None else self.manifest.version

    @property
    def order(self) -> int:
        """Its stamp, -1 without one."""
        return -1 if self.manifest is None else self.manifest.stamp

    def __str__(self) -> str:
        return f"{self.version} {self.state}{', sealed' if self.sealed else ''}"


class StagedSupply:
    """A `Supply` from staging memory: everything is there, and hashed when it is needed first.

    Args:
        manifest: the version.
        memory: its bytes.
        checksums: the known checksums of its chunks; computed ones are added.
        base: the bytes of another version that is staged, while it is.
        share: the part of it that is here; None: all of it.
    """

    def __init__(
        self,
        manifest: Manifest,
        memory: SendableMemory,
        checksums: dict[int, int],
        base: Callable[[tuple[int, int]], memoryview | None] = lambda _: None,
        share: Share | None = None,
    ) -> None:
        self._manifest, self._checksums, self._base = manifest, checksums, base
        self._mine = range(manifest.chunk_count) if share is None else range(share.first, share.last)
        self.memory = memory

    def next(self, wanted: list[int]) -> int | None:
        return next((position for position, index in enumerate(wanted) if index in self._mine), None)

    def checksum(self, index: int) -> int:
        if index not in self._checksums:
            offset, nbytes = self._manifest.chunk(index)
            self._checksums[index] = checksum(self.memory.view[offset : offset + nbytes])
        return self._checksums[index]

    def base(self, key: tuple[int, int]) -> memoryview | None:
        return self._base(key)


def measure(weights: Iterable[tuple[str, Any]]) -> int | None:
    """Bytes that weights take at most; None for a generator, which can be gone through only once.

    Raises:
        ManifestInvalid: a tensor is of an unsupported kind.
    """
    if not isinstance(weights, Sequence | ItemsView):
        return None
    end = 0
    for name, value in weights:
        end = aligned(end) + source(name, value).nbytes
    return end


def _grown(old: mmap.mmap | None, fd: int, size: int) -> mmap.mmap:
    if old is not None and hasattr(os, "memfd_create"):
        try:
            old.resize(size)  # on Linux what is mapped stays mapped; a new mapping would fault it in again
        except BufferError:  # the traceback of a copy that failed refers to it
            pass
        else:
            return old
    return mmap.mmap(fd, size, flags=mmap.MAP_SHARED)


def _unnamed_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("tailrace-staging", os.MFD_CLOEXEC)
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
