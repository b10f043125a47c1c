"""Directories of a process that others may remove once it is gone: it holds a lock on each, which ends with it."""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SHARED = Path("/dev/shm")  # noqa: S108, RUF100 - the memory that processes share
SERVICE, ADAPTER, WEIGHTS = "service", "adapter", "weights"
_PREFIX = "tailrace-"


class OwnDirectory:
    """A directory that nobody else has. It is not there before `make`.

    Args:
        kind: `SERVICE`, which stands in the temporary directory, or `ADAPTER` or `WEIGHTS`, in shared memory if there is such.
    """

    def __init__(self, kind: str = SERVICE) -> None:
        self.path = _within(kind) / f"{_PREFIX}{kind}-{secrets.token_hex(8)}"
        self._lock: int | None = None

    def make(self) -> None:
        """Make it, readable by this user alone, and lock it. It has its name once it is locked."""
        made = self.path.with_name(f".{self.path.name}")
        made.mkdir(mode=0o700)
        self._lock = os.open(made, os.O_RDONLY)
        fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        made.rename(self.path)

    def remove(self) -> None:
        """Remove it with all that is in it, if it is there."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


@contextmanager
def scratch(kind: str) -> Iterator[Path]:
    """A directory for what is handed over within this context. What killed processes left of the kind goes before."""
    for left in left_directories(kind):
        shutil.rmtree(left, ignore_errors=True)
    own = OwnDirectory(kind)
    try:
        own.make()
        yield own.path
    finally:
        own.remove()


def left_directories(kind: str = SERVICE) -> list[Path]:
    """The directories of a kind of this user's processes that are gone."""
    return [path for path in sorted(_within(kind).glob(f"{_PREFIX}{kind}-*")) if _is_left(path)]


def _within(kind: str) -> Path:
    return SHARED if kind != SERVICE and SHARED.is_dir() else Path(tempfile.gettempdir())


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
