"""The processes that descend from this one: who they are, what they use, and their end.

The kernel hands orphans to the nearest subreaper above them, so all of a program's processes, daemons too, stay below the
supervisor that started it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_TICKS = os.sysconf("SC_CLK_TCK")


def become_subreaper() -> None:
    """Adopt orphaned descendants from now on.

    Raises:
        OSError: the kernel refused.
    """
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER) failed")


@dataclass(slots=True)
class Usage:
    """What a tree uses at one moment, and CPU seconds since its start."""

    processes: int = 0
    threads: int = 0
    memory_bytes: int = 0
    cpu_s: float = 0.0


@dataclass(slots=True)
class _Stat:
    parent: int
    threads: int
    own_cpu_s: float
    tree_cpu_s: float
    resident_bytes: int


@dataclass(slots=True)
class ProcessTree:
    """The descendants of this process, seen anew at each `usage`.

    Args:
        ignored: processes of ours among them, which count for nothing.
    """

    ignored: set[int] = field(default_factory=set)
    _others: set[int] = field(default_factory=set)
    _members: set[int] = field(default_factory=set)
    _cpu_s: dict[int, float] = field(default_factory=dict)

    def usage(self) -> Usage:
        """Look at every process of the tree once."""
        stats = self._scan()
        used, waited = Usage(), 0.0
        for pid, stat in stats.items():
            if pid in self.ignored:
                continue
            used.processes += 1
            used.threads += stat.threads
            used.memory_bytes += stat.resident_bytes
            waited += stat.tree_cpu_s
            self._cpu_s[pid] = stat.own_cpu_s
        # A dead child's time is in its parent's, if that waited for it; else only in what was seen of it.
        used.cpu_s = max(waited, sum(self._cpu_s.values()))
        return used

    def memory_bytes(self) -> int:
        """Resident memory in which shared pages count once."""
        total = 0
        for pid in self._members - self.ignored:
            with contextlib.suppress(OSError, ValueError, StopIteration):
                lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
                total += 1024 * int(next(line for line in lines if line.startswith("Pss:")).split()[1])
        return total

    def kill(self, timeout_s: float) -> bool:
        """Kill and reap every descendant; False if one is left after `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        while True:
            for pid in sorted(
                self._scan(), key=lambda pid: pid not in self.ignored
            ):  # ours first: they serve its forks
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            try:
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            except ChildProcessError:
                return True
            if time.monotonic() > deadline:
                return False
            time.sleep(0.001)

    def _scan(self) -> dict[int, _Stat]:
        listed = {int(name) for name in os.listdir("/proc") if name.isdigit()}  # noqa: PTH208 (paths cost more)
        self._others &= listed
        fresh = {pid: stat for pid in listed - self._others if (stat := _read(pid)) is not None}
        members: set[int] = set()
        known, growing = {os.getpid()}, True
        while growing:
            found = {pid for pid, stat in fresh.items() if stat.parent in known and pid not in members}
            members |= found
            known, growing = found, bool(found)
        self._members = members
        # A process is known as no member only when its line of parents was seen whole: one that was seen while its parent
        # died may turn up as our orphan.
        known = {0, *self._others}
        while known:
            known = {pid for pid, stat in fresh.items() if stat.parent in known and pid not in members | self._others}
            self._others |= known
        return {pid: fresh[pid] for pid in members}


def _read(pid: int) -> _Stat | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    rest = text[text.rindex(b")") + 2 :].split()
    own = (int(rest[11]) + int(rest[12])) / _TICKS
    waited = (int(rest[13]) + int(rest[14])) / _TICKS
    return _Stat(int(rest[1]), int(rest[17]), own, own + waited, int(rest[21]) * _PAGE_BYTES)
