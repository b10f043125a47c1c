"""The directory of a service: made when it starts, locked while its process lives, removed when it closes.

A process that is killed leaves it behind, with weights in it. Its lock is gone then, which is how `left_directories` knows it.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import tempfile
from pathlib import Path

_PREFIX = "tailrace-service-"


class OwnDirectory:
    """A directory in the temporary one that nobody else has. It is not there before `make`."""

    def __init__(self) -> None:
        self.path = Path(tempfile.gettempdir()) / f"{_PREFIX}{secrets.token_hex(8)}"
        self._lock: int | None = None

    def make(self) -> None:
        """Make it, readable by this user alone, and lock it."""
        self.path.mkdir(mode=0o700)
        self._lock = os.open(self.path, os.O_RDONLY)
        fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def remove(self) -> None:
        """Remove it with all that is in it, if it is there."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def left_directories() -> list[Path]:
    """The directories of this user's services whose process is gone."""
    found = sorted(Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"))
    return [path for path in found if _is_left(path)]


def _is_left(path: Path) -> bool:
    try:
        file = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:  # it was removed meanwhile, or is somebody else's
        return False
    try:
        if os.fstat(file).st_uid != os.getuid():
            return False
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(file)
    return True
