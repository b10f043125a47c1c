"""Does the disk keep what is written to it, and is there room?"""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tailrace.faulttol.machine_checks.check import UnfitError

_BLOCK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Disk:
    """Write random bytes, force them to the disk, read them back and compare. Plugin ``disk``.

    The system is asked to forget its copy of the file first, so that the bytes come from the disk where it obeys.

    Args:
        write_bytes: bytes to write.
        free_bytes: least room on the disk.
    """

    write_bytes: int = 16 << 20
    free_bytes: int = 1 << 30

    def run(self, directory: Path) -> str:
        """See `MachineCheck.run`."""
        try:
            free = shutil.disk_usage(directory).free
            if free < self.free_bytes + self.write_bytes:
                expected = self.free_bytes + self.write_bytes
                raise UnfitError(f"{directory}: found {free:,} bytes free, expected {expected:,} at least")
            with tempfile.TemporaryFile(dir=directory) as file:
                written = hashlib.sha256()
                draw = random.Random(self.write_bytes)
                for start in range(0, self.write_bytes, _BLOCK_BYTES):
                    block = draw.randbytes(min(_BLOCK_BYTES, self.write_bytes - start))
                    written.update(block)
                    file.write(block)
                file.flush()
                os.fsync(file.fileno())
                if hasattr(os, "posix_fadvise"):
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                file.seek(0)
                read = hashlib.file_digest(file, "sha256")
        except OSError as error:
            raise UnfitError(f"{directory}: {error}, expected a disk that can be written and read") from error
        if read.digest() != written.digest():
            raise UnfitError(f"{directory}: read other bytes than the {self.write_bytes:,} written, expected the same")
        return f"{self.write_bytes:,} bytes came back, {free:,} are free"
