"""The chunks of a version that a publisher has staged, for the relay that it sends them to."""

from __future__ import annotations

from collections.abc import Callable

from tailrace.paramserver.manifest import Manifest, checksum
from tailrace.paramserver.wire.sending import Memory


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
