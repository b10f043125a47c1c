"""A version that a publisher has staged, and its chunks for the relay that it is sent to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

from tailrace.paramserver.clients.share import Share
from tailrace.paramserver.clients.staging import StagingBuffer
from tailrace.paramserver.manifest import Manifest, checksum
from tailrace.paramserver.wire.sending import SendableMemory


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
