"""Memory of this process that is filled again and again, so that its pages are there already.

New pages are zeroed by the kernel one by one as they are touched: on the machine where this was measured at 0.8 GB/s, where
memory that is there is written at several.
"""

from __future__ import annotations

import mmap
import sys
import threading
from collections.abc import Hashable
from typing import Any

from tailrace.paramserver.dlpack import flat_torch


class SpareMemory:
    """Pieces of memory; each is handed out again once nothing refers to it any more. Threads may share it.

    Args:
        most: pieces that are kept for each kind; whoever holds more of them at once gets new memory, which is not kept.
    """

    def __init__(self, most: int = 1) -> None:
        self._most = most
        self._kept: dict[Hashable, list[mmap.mmap]] = {}
        self._lock = threading.Lock()  # a piece is found unused and taken in one go

    def take(self, nbytes: int, kind: Hashable = None) -> memoryview:
        """Memory of this size. It holds whatever was written to it last, or zeros.

        Args:
            kind: only what was handed out for the same kind is used again.
        """
        with self._lock:
            kept = self._kept.setdefault(kind, [])
            free = [memory for memory in kept if _unused(memory)]
            fitting = min((memory for memory in free if len(memory) >= nbytes), key=len, default=None)
            if fitting is not None:
                return memoryview(fitting)[:nbytes]
            if free:  # too small: its successor is larger
                kept.remove(max(free, key=len))
            del free
            new = mmap.mmap(-1, max(mmap.PAGESIZE, nbytes))
            if len(kept) < self._most:
                kept.append(new)
            return memoryview(new)[:nbytes]

    @property
    def nbytes(self) -> int:
        """Bytes that are kept."""
        return sum(len(memory) for kept in self._kept.values() for memory in kept)

    def clear(self) -> None:
        """Keep nothing. Memory goes when nothing refers to it."""
        self._kept.clear()


def _unused(memory: mmap.mmap) -> bool:
    try:
        memory.resize(len(memory))  # refused while there are views on it
    except (BufferError, SystemError):  # SystemError: this platform cannot tell
        return False
    return True


def writable(memory: memoryview) -> Any:
    """The memory for copies into it: as a torch tensor where torch is loaded, which copies without the interpreter's lock."""
    return memory if sys.modules.get("torch") is None else flat_torch(memory)


def pinned(nbytes: int) -> Any | None:
    """Page-locked memory as a flat torch tensor, where torch uses a GPU; None elsewhere.

    torch keeps what is freed, and waits for copies from it that are under way, so it is reused like `SpareMemory`.
    """
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available() or not torch.cuda.is_initialized():
        return None
    return torch.empty(max(1, nbytes), dtype=torch.uint8, pin_memory=True)[:nbytes]
