"""Fault injection in real processes."""

from __future__ import annotations

import os

from tailrace.faulttol.injection import FaultKind


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
