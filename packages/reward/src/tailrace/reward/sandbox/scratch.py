"""A program's directory on the host: what it takes, and its removal. Nothing that a program makes in it stops either one."""

from __future__ import annotations

import contextlib
import os
import stat
import sys
from pathlib import Path

DEEPEST = 64
"""Directories in each other; deeper ones count as more than any limit."""
_ENTRY_BYTES = 4096
_DIRECTORY = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def scratch_size(folder: Path) -> int:
    """Bytes of the files in a directory while a program may change it, a small amount for each entry included."""
    total, opened = 0, [_opened(str(folder), None)]
    pending = [os.listdir(opened[0])]  # noqa: PTH208 (of a descriptor)
    try:
        while opened:
            if not pending[-1]:
                pending.pop()
                os.close(opened.pop())
                continue
            name = pending[-1].pop()
            total += _ENTRY_BYTES
            try:
                found = os.stat(name, dir_fd=opened[-1], follow_symlinks=False)
                if not stat.S_ISDIR(found.st_mode):
                    total += found.st_blocks * 512
                    continue
                if len(opened) > DEEPEST:
                    return sys.maxsize
                inner = _opened(name, opened[-1])
            except OSError:
                continue  # it is gone by now
            opened.append(inner)
            pending.append(os.listdir(inner))  # noqa: PTH208
    finally:
        for fd in opened:
            os.close(fd)
    return total


def empty(folder: Path) -> None:
    """Remove what is in a directory that nobody changes any more, however deep.

    Raises:
        OSError: something cannot be removed.
    """
    top = _opened(str(folder), None)
    try:
        waiting, number = ["."], 0
        while waiting:
            name = waiting.pop()
            inner = top if name == "." else _opened(name, top, change=True)
            try:
                for entry in os.listdir(inner):  # noqa: PTH208
                    if not stat.S_ISDIR(os.stat(entry, dir_fd=inner, follow_symlinks=False).st_mode):
                        os.unlink(entry, dir_fd=inner)
                        continue
                    if inner == top:
                        waiting.append(entry)
                        continue
                    # To the top, so that no depth takes descriptors or long paths.
                    number += 1
                    waiting.append(f"{number}-{os.urandom(8).hex()}")
                    os.close(_opened(entry, inner, change=True))
                    os.rename(entry, waiting[-1], src_dir_fd=inner, dst_dir_fd=top)
            finally:
                if inner != top:
                    os.close(inner)
            if name != ".":
                os.rmdir(name, dir_fd=top)
    finally:
        os.close(top)


def remove(folder: Path) -> None:
    """Remove a directory that nobody changes any more, and all in it; without effect if it is gone.

    Raises:
        OSError: something cannot be removed.
    """
    with contextlib.suppress(FileNotFoundError):
        empty(folder)
        folder.rmdir()


def _opened(name: str, parent: int | None, *, change: bool = False) -> int:
    """A descriptor of a directory, whatever mode it was made with; with `change`, its entries may be changed too."""
    try:
        fd = os.open(name, os.O_RDONLY | _DIRECTORY, dir_fd=parent)
    except PermissionError:
        place = os.open(name, os.O_PATH | _DIRECTORY, dir_fd=parent)
        try:
            os.chmod(f"/proc/self/fd/{place}", 0o700)  # noqa: PTH101 (no link can stand there)
        finally:
            os.close(place)
        fd = os.open(name, os.O_RDONLY | _DIRECTORY, dir_fd=parent)
    if change:
        os.fchmod(fd, 0o700)
    return fd
