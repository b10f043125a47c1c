"""Does the memory keep what is written to it, and is there enough?"""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

from tailrace.faulttol.machine_checks.check import UnfitError

_PATTERNS = (0x00, 0xFF, 0x55, 0xAA)
_MEMINFO = Path("/proc/meminfo")


@dataclass(frozen=True, slots=True)
class Memory:
    """Fill memory with patterns and with random bytes, and compare. Plugin ``memory``.

    It sees only the pages that it gets, so it finds a broken module by chance; it finds a machine without memory for sure.

    Args:
        fill_bytes: bytes to fill.
        free_bytes: least memory that the system can give; not checked where it does not say.
    """

    fill_bytes: int = 16 << 20
    free_bytes: int = 256 << 20

    def run(self, directory: Path) -> str:  # noqa: ARG002 - the protocol's argument
        """See `MachineCheck.run`."""
        free = _available_bytes()
        if free is not None and free < self.free_bytes + self.fill_bytes:
            raise UnfitError(f"found {free:,} bytes of memory free, expected {self.free_bytes + self.fill_bytes:,}")
        try:
            block = bytearray(self.fill_bytes)
            for pattern in _PATTERNS:
                expected = bytes([pattern]) * self.fill_bytes
                block[:] = expected
                self._compare(block, expected, f"0x{pattern:02x}")
            expected = random.Random(self.fill_bytes).randbytes(self.fill_bytes)
            block[:] = expected
            self._compare(block, expected, "random bytes")
        except MemoryError as error:
            raise UnfitError(f"could not get {self.fill_bytes:,} bytes of memory, expected to") from error
        return f"{self.fill_bytes:,} bytes kept {len(_PATTERNS) + 1} patterns"

    @staticmethod
    def _compare(found: bytearray, expected: bytes, pattern: str) -> None:
        if found != expected:
            wrong = next(at for at, (one, other) in enumerate(zip(found, expected, strict=True)) if one != other)
            raise UnfitError(f"memory changed at byte {wrong:,} of {len(expected):,}, expected {pattern} to stay")


def _available_bytes() -> int | None:
    """Bytes that the system can give without swapping; None if it does not say."""
    try:
        lines = _MEMINFO.read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    found = [line.split()[1] for line in lines if line.startswith("MemAvailable:")]
    return int(found[0]) * 1024 if found else None
