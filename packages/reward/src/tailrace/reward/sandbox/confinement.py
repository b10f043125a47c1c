"""What a process can give up for itself and its children, for good: capabilities and system calls."""

from __future__ import annotations

import ctypes
import os

_PR_SET_SECCOMP, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS = 22, 24, 38
_SECCOMP_MODE_FILTER = 2
_CAP_VERSION_3 = 0x20080522
_SOCK_FILTER_BYTES = 8
_libc = ctypes.CDLL(None, use_errno=True)


class _Filter(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("lines", ctypes.c_char_p))


def drop_capabilities() -> None:
    """Give up every capability, so that being root is worth no more than owning root's files.

    Raises:
        OSError: the kernel refused.
    """
    capability = 0
    while _libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0) == 0:  # fails past the last one, and for a user
        capability += 1
    header = (ctypes.c_uint32 * 2)(_CAP_VERSION_3, 0)
    nothing = (ctypes.c_uint32 * 6)()
    _check(_libc.capset(header, nothing), "capset")


def install_filter(lines: bytes) -> None:
    """Filter the system calls of this thread and of all processes and threads that it starts.

    Raises:
        OSError: the kernel refused.
    """
    _check(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl(PR_SET_NO_NEW_PRIVS)")
    program = _Filter(len(lines) // _SOCK_FILTER_BYTES, lines)
    _check(_libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0), "prctl(PR_SET_SECCOMP)")


def _check(status: int, what: str) -> None:
    if status != 0:
        raise OSError(ctypes.get_errno(), f"{what}: {os.strerror(ctypes.get_errno())}")
