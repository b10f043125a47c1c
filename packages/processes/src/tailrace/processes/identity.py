"""Whether a process is alive: of the same pid and the same start time, so that a reused pid does not count."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class ProcessId:
    """A process that is not mistaken for a later one with its pid.

    Args:
        pid: process id.
        started: start time in the kernel's clock ticks, or None where /proc does not tell.
        namespace: the pid namespace: a pid from another one says nothing here.
    """

    pid: int
    started: int | None
    namespace: str

    @classmethod
    def current(cls) -> ProcessId:
        """This process."""
        return cls.of(os.getpid())

    @classmethod
    def of(cls, pid: int) -> ProcessId:
        """The process that has a process id now, in this process's namespace."""
        return cls(pid, _started(pid), _namespace())

    def alive(self) -> bool:
        """Whether it runs. A zombie does not; a process of another pid namespace is presumed to."""
        if self.namespace != _namespace():
            return True
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            return True
        return not Path("/proc/self/stat").exists() or _started(self.pid) == self.started is not None

    def kill(self) -> bool:
        """SIGKILL, if it is certain that no other process is hit, nor this one. Returns whether it was sent."""
        certain = self.namespace == _namespace() and self.started is not None and self.pid != os.getpid()
        if not certain or not self.alive():
            return False
        try:
            os.kill(self.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            return False
        return True


def _namespace() -> str:
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""


def _started(pid: int) -> int | None:
    """Start time, or None for a process that is gone or a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    state, *fields = stat.rpartition(")")[2].split()
    return None if state in "ZX" else int(fields[18])
