"""Real processes: fault injection, and children that never outlive their parent."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

from tailrace.faulttol.injection import FaultKind

_PR_SET_PDEATHSIG = 1


def strike(pid: int, kind: FaultKind) -> bool:
    """Kill or hang a process.

    Returns:
        Whether the process existed.

    Raises:
        ValueError: `pid` is not above 1 (zero and negative numbers mean whole process groups), or no signal causes a fault
            of this kind.
        PermissionError: the process belongs to another user.
    """
    if pid <= 1:
        raise ValueError(f"found process id {pid}, expected one above 1")
    if kind.signal is None:
        raise ValueError(f"found {str(kind)!r}, expected kill or hang: no signal does it")
    try:
        os.kill(pid, kind.signal)
    except ProcessLookupError:
        return False
    return True


def die_with_parent(parent: int | None = None) -> bool:
    """Have the kernel kill this process when its parent dies, even if the parent is killed without cleaning up.

    To the kernel, the parent is the *thread* that forked: start such children from a thread that lives as long as they should.

    Args:
        parent: process id of the parent, if known. If the parent died before this call, this process exits at once.

    Returns:
        Whether the kernel will do so. Only Linux can.

    Raises:
        OSError: the kernel refused.
    """
    if not sys.platform.startswith("linux"):
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    if parent is not None and os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)
    return True
