"""Real processes: struck by a fault, and never outliving their parent."""

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
        Whether it was there to be struck.

    Raises:
        ValueError: `pid` is not above 1 (zero and negative numbers mean whole process groups), or no signal does this: what
            happens inside a process is asked of the process.
        PermissionError: the process is somebody else's.
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
    """Have the kernel kill this process when its parent dies, even if the parent is killed and cleans nothing up.

    The kernel's parent is the *thread* that forked: start such children from a thread that lives as long as they should.

    Args:
        parent: process id of the parent, if the child knows it. A parent that died before this call is then noticed, and
            this process exits at once.

    Returns:
        Whether it is in force. Only Linux offers it.

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
