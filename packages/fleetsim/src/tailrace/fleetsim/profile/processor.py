"""Processor time by process, from Linux' ``/proc``. On other systems no process and no core counts as in use."""

from __future__ import annotations

import os
import time
from pathlib import Path

Usage = dict[int, float]
"""Processor seconds since its start, by process."""

PROC = Path("/proc")
_PARENT, _USER, _SYSTEM = 1, 11, 12  # fields after the name in /proc/PID/stat
_IDLE, _WAITING, _GUEST = 3, 4, 8  # fields after "cpu" in /proc/stat; guests' time is included in user time too


def usage(root: int | None = None, proc: Path = PROC) -> Usage:
    """Processor seconds of a process and all its descendants; of this process by default."""
    root = os.getpid() if root is None else root
    spent: Usage = {}
    children: dict[int, list[int]] = {}
    for entry in proc.iterdir() if proc.is_dir() else ():
        if entry.name.isdigit() and (found := _stat(entry / "stat")) is not None:
            pid = int(entry.name)
            spent[pid] = (int(found[_USER]) + int(found[_SYSTEM])) * _tick_s()
            children.setdefault(int(found[_PARENT]), []).append(pid)
    mine, left = [], [root]
    while left:
        pid = left.pop()
        mine.append(pid)
        left += children.get(pid, [])
    return {pid: spent[pid] for pid in mine if pid in spent}


def machine_s(proc: Path = PROC) -> float:
    """Processor seconds that all processes of the machine have used since it started."""
    try:
        fields = [int(field) for field in (proc / "stat").read_text().splitlines()[0].split()[1:]]
    except (OSError, IndexError):
        return 0.0
    return (sum(fields[:_GUEST]) - fields[_IDLE] - fields[_WAITING]) * _tick_s()


class Others:
    """Cores used by programs other than a process and its descendants, from creation to the last `look`."""

    def __init__(self, root: int, proc: Path = PROC) -> None:
        self._root, self._proc = root, proc
        self._before = usage(root, proc)
        self._ours: Usage = dict(self._before)
        self._machine_s, self._at = machine_s(proc), time.monotonic()
        self.cores = 0.0

    def look(self) -> None:
        """Update the count. Call it often, since processes that start and end between two calls are missed."""
        self._ours |= usage(self._root, self._proc)
        ours = sum(spent - self._before.get(pid, 0.0) for pid, spent in self._ours.items())
        passed = time.monotonic() - self._at
        if passed > 0:
            self.cores = max(0.0, (machine_s(self._proc) - self._machine_s - ours) / passed)


def cores_here() -> int:
    """Cores that this process may use."""
    allowed = getattr(os, "sched_getaffinity", None)
    return len(allowed(0)) if allowed is not None else os.cpu_count() or 1


def _tick_s() -> float:
    return 1.0 / os.sysconf("SC_CLK_TCK")


def _stat(path: Path) -> list[str] | None:
    try:
        return path.read_text().rpartition(")")[2].split()
    except OSError:  # the process has ended meanwhile
        return None
