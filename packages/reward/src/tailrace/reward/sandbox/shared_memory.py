"""Runs inside the sandbox, as text, once a program imports `multiprocessing`'s parts that want /dev/shm, which it has not.

Semaphores lie in memory that forked processes share, shared memory in files of the scratch directory. So pools, queues, locks
and shared values work among forked processes. They do not among spawned ones, nor do managers, which need sockets.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import sys
import threading
import time
from collections.abc import Sequence
from types import ModuleType, TracebackType
from typing import Any

_libc = ctypes.CDLL(None, use_errno=True)
_SCRATCH = os.getcwd()  # noqa: PTH109
_RECURSIVE = 0


class _Time(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class SemLock:
    """Replaces ``_multiprocessing.SemLock``."""

    SEM_VALUE_MAX = (1 << 31) - 1

    def __init__(self, kind: int, value: int, maxvalue: int, name: str, unlink: bool) -> None:  # noqa: ARG002 (as there)
        if not unlink:
            raise OSError(
                errno.ENOSYS, "semaphores with names, which spawned processes need, are not to be had in a sandbox"
            )
        self.kind, self.maxvalue, self.name = kind, maxvalue, None
        self._memory = mmap.mmap(-1, mmap.PAGESIZE)
        self._held = ctypes.c_char.from_buffer(self._memory)
        self.handle = ctypes.addressof(self._held)
        self._at = ctypes.c_void_p(self.handle)
        self._owned, self._owner = 0, 0
        if _libc.sem_init(self._at, 1, value) != 0:
            raise OSError(ctypes.get_errno(), "sem_init")

    def acquire(self, block: bool = True, timeout: float | None = None) -> bool:
        """Take it; False if it cannot be had."""
        if self.kind == _RECURSIVE and self._is_mine():
            self._owned += 1
            return True
        taken = _libc.sem_trywait(self._at)
        if taken != 0 and block:
            ends = None
            if timeout is not None:
                seconds = time.time() + max(0.0, timeout)
                ends = _Time(int(seconds), int(seconds % 1 * 1e9))
            while taken != 0:
                taken = _libc.sem_wait(self._at) if ends is None else _libc.sem_timedwait(self._at, ctypes.byref(ends))
                if taken != 0 and ctypes.get_errno() != errno.EINTR:
                    break
        if taken != 0:
            return False
        self._owned, self._owner = self._owned + 1, threading.get_ident()
        return True

    def release(self) -> None:
        """Give it back."""
        if self.kind == _RECURSIVE:
            if not self._is_mine():
                raise AssertionError("attempt to release recursive lock not owned by thread")
            if self._owned > 1:
                self._owned -= 1
                return
        elif self._get_value() >= self.maxvalue:
            raise ValueError("semaphore or lock released too many times")
        _libc.sem_post(self._at)
        self._owned -= 1

    def _count(self) -> int:
        return self._owned

    def _is_mine(self) -> bool:
        return self._owned > 0 and self._owner == threading.get_ident()

    def _get_value(self) -> int:
        value = ctypes.c_int()
        _libc.sem_getvalue(self._at, ctypes.byref(value))
        return max(0, value.value)

    def _is_zero(self) -> bool:
        return self._get_value() == 0

    def _after_fork(self) -> None:
        self._owned = 0

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def sem_unlink(name: str) -> None:
    """Replaces ``_multiprocessing.sem_unlink``: no semaphore has a name."""
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)


def shm_open(path: str, flags: int, mode: int = 0o777) -> int:
    """Replaces ``_posixshmem.shm_open``."""
    return os.open(_SCRATCH + path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, mode)


def shm_unlink(path: str) -> None:
    """Replaces ``_posixshmem.shm_unlink``."""
    os.unlink(_SCRATCH + path)  # noqa: PTH108


class Loader:
    """Loads what stands here under the names of the modules that it stands for."""

    def __init__(self, name: str, found: Any) -> None:
        self._name, self._found = name, found

    def create_module(self, spec: Any) -> ModuleType | None:
        """See `importlib.abc.Loader`."""
        return None if self._found is None else self._found.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """See `importlib.abc.Loader`."""
        if self._name == "multiprocessing.heap":
            self._found.exec_module(module)
            module.Arena._dir_candidates = []
        elif self._name == "_posixshmem":
            vars(module).update(shm_open=shm_open, shm_unlink=shm_unlink)
        else:
            vars(module).update(SemLock=SemLock, sem_unlink=sem_unlink, flags={})


def spec_of(name: str, path: Sequence[str] | None, finders: Sequence[Any]) -> Any:
    """The spec of a module for which something here stands, or of one that is changed a little."""
    found = None
    if name == "multiprocessing.heap":
        found = next(spec.loader for finder in finders if (spec := finder.find_spec(name, path)) is not None)
    return sys.modules["_frozen_importlib"].ModuleSpec(name, Loader(name, found))
