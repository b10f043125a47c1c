"""A version that a publisher has staged, and its chunks for the relay that it is sent to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

from tailrace.paramserver.clients.staging import StagingBuffer
from tailrace.paramserver.manifest import Manifest, checksum
from tailrace.paramserver.wire.sending import Memory


class State(StrEnum):
    """Lifecycle of a staged version; owned by the publisher. WAITING to be pushed; HELD once it was."""

    EMPTY = "empty"
    FILLING = "filling"
    WAITING = "waiting"
    PUSHING = "pushing"
    HELD = "held"


@dataclass(eq=False)
class Staged:
    """A staging buffer and the version in it.

    Args:
        memory: the buffer.
        state: see `State`.
        manifest: of the version.
        checksums: of its chunks, as far as they are known. They outlive a failed push.
        sent: chunks that the present master was sent.
        pinned: the stamp that the caller chose, if it did.
        sealed: the version must not be visible yet.
    """

    memory: StagingBuffer
    state: State = State.EMPTY
    manifest: Manifest | None = None
    checksums: dict[int, int] = field(default_factory=dict)
    sent: set[int] = field(default_factory=set)
    pinned: int | None = None
    sealed: bool = False

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
        checksums: of its chunks, as far as they are known; what is computed is added.
        base: the bytes of another version that is staged, while it is.
    """

    def __init__(
        self,
        manifest: Manifest,
        memory: Memory,
        checksums: dict[int, int],
        base: Callable[[tuple[int, int]], memoryview | None] = lambda _: None,
    ) -> None:
        self._manifest, self._checksums, self._base = manifest, checksums, base
        self.memory = memory

    def next(self, wanted: list[int]) -> int | None:  # noqa: ARG002  all of them are there
        """See `Supply`."""
        return 0

    def checksum(self, index: int) -> int:
        """See `Supply`."""
        if index not in self._checksums:
            offset, nbytes = self._manifest.chunk(index)
            self._checksums[index] = checksum(self.memory.view[offset : offset + nbytes])
        return self._checksums[index]

    def base(self, key: tuple[int, int]) -> memoryview | None:
        """See `Supply`."""
        return self._base(key)
