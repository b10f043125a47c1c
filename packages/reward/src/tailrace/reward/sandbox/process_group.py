"""A program's processes: each one's start, what they use, and their end.

Each program leads a process group of its own, and its system call filter keeps every process that it starts in that group
(``setsid`` and ``setpgid`` do nothing). One signal to the group therefore reaches all of them at once; the kernel lets no fork
slip through it. Orphans are handed to the nearest subreaper, which is the process that started the program. The kernel holds
each start of a process or a thread until it is let: a program cannot grow while nobody looks, however late the next look comes.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import select
import signal
import struct
import time
from dataclasses import dataclass
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36
_CLONE_THREAD = 0x10000
_QUESTION, _ANSWER = struct.Struct("=QIIiIQ6Q"), struct.Struct("=QqiI")  # struct seccomp_notif and seccomp_notif_resp
_RECEIVE, _SEND, _CONTINUE = 0xC0502100, 0xC0182101, 1
_CLONES = {"x86_64": 56, "aarch64": 220}
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
    """What a group uses at one moment, and its CPU seconds so far.

    `runs`: one of it has a core or waits for one. Where there are several, the first one does not count, which may only look
    after the others.
    """

    processes: int
    threads: int
    memory_bytes: int
    runs: bool
    cpu_s: float


@dataclass(slots=True)
class _Stat:
    runs: bool
    started: int
    threads: int
    own_cpu_s: float
    waited_cpu_s: float
    resident_bytes: int


class ProcessGroup:
    """The processes of one program, which are descendants of this process.

    Args:
        leader: the process id of the group's leader, a child of this process.
        listener: the descriptor on which the kernel asks whether a process or thread may start; the group closes it.
    """

    def __init__(self, leader: int, listener: int | None) -> None:
        self.leader, self.listener = leader, listener
        self.started_processes = 0
        """Starts that were let since the last look at the group."""
        self.started_threads = 0
        """The same of threads, each process's first one included."""
        self._groups = {leader}
        self.status: int | None = None
        """The leader's wait status, once it has ended."""
        self.reaped_cpu_s = 0.0
        """CPU seconds of those that this process has reaped, and of those that they had waited for."""
        self.peak_bytes = 0
        """The most memory that one of them used."""
        self._others: set[int] = set()
        self._members: dict[int, _Stat] = {}
        self._cpu_s: dict[int, float] = {}

    def add(self, group: int) -> None:
        """Count another process group in, which a process of this one leads."""
        if group not in self._groups:
            self._groups.add(group)
            self._others.clear()  # its processes may have been seen before

    def let_start(self) -> None:
        """Let the start of one process or thread go on, if one waits."""
        if self.listener is None:
            return
        poll = select.poll()
        poll.register(self.listener, select.POLLIN)
        if not any(events & select.POLLIN for _, events in poll.poll(0)):
            return  # to ask the kernel would wait for a start
        question = bytearray(_QUESTION.size)
        try:
            fcntl.ioctl(self.listener, _RECEIVE, question)
            asked = _QUESTION.unpack(question)
            fcntl.ioctl(self.listener, _SEND, _ANSWER.pack(asked[0], 0, 0, _CONTINUE))
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.EINTR):
                return  # it was killed, or a signal came first and it asks again
            raise
        thread = asked[3] == _CLONES.get(os.uname().machine) and asked[6] & _CLONE_THREAD
        self.started_processes += not thread
        self.started_threads += 1

    def usage(self, helpers: frozenset[int] = frozenset()) -> Usage:
        """Look at every process of the group once. `helpers` are processes of ours in it, and count for nothing."""
        self.started_processes = self.started_threads = 0
        self._scan()
        seen = [stat for pid, stat in self._members.items() if pid not in helpers]
        for pid, stat in self._members.items():
            self._cpu_s[pid] = stat.own_cpu_s
        # What a dead child used is in the times of the process that waited for it; where none did, in what was seen of it.
        waited = self.reaped_cpu_s + sum(stat.own_cpu_s + stat.waited_cpu_s for stat in self._members.values())
        return Usage(
            processes=len(seen),
            threads=sum(stat.threads for stat in seen),
            memory_bytes=sum(stat.resident_bytes for stat in seen),
            runs=any(stat.runs for stat in sorted(seen, key=lambda stat: stat.started)[len(seen) > 1 :]),
            cpu_s=max(waited, sum(self._cpu_s.values())),
        )

    def members(self) -> list[int]:
        """Process ids that the last look found."""
        return list(self._members)

    def shared_memory_bytes(self) -> int:
        """Resident memory in which pages that several processes share count once."""
        total = 0
        for pid, stat in self._members.items():
            try:
                lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
                total += next(1024 * int(line.split()[1]) for line in lines if line.startswith("Pss:"))
            except (FileNotFoundError, ProcessLookupError, StopIteration):
                continue  # it has ended
            except PermissionError:
                total += stat.resident_bytes
        return total

    def reap(self) -> bool:
        """Reap what has ended; False once this process has no child left."""
        while True:
            try:
                pid, status, used = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if pid == self.leader:
                self.status = status
            self.reaped_cpu_s += used.ru_utime + used.ru_stime
            self.peak_bytes = max(self.peak_bytes, used.ru_maxrss << 10)

    def kill(self, timeout_s: float) -> bool:
        """Kill and reap all of them, those included that wait to start; False if one is left after `timeout_s`."""
        if self.listener is not None:
            os.close(self.listener)  # the kernel refuses starts that wait, and all that come
            self.listener = None
        deadline = time.monotonic() + timeout_s
        pause_s = 0.0005
        while self.reap():
            for group in self._groups:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(group, signal.SIGKILL)
            if time.monotonic() > deadline:
                return False
            time.sleep(pause_s)
            pause_s = min(0.02, 2 * pause_s)
        return True

    def _scan(self) -> None:
        listed = {int(name) for name in os.listdir("/proc") if name.isdigit()}  # noqa: PTH208 (paths cost more)
        self._others &= listed
        self._members = {}
        for pid in listed - self._others:
            try:
                stat = Path(f"/proc/{pid}/stat").read_bytes()
            except OSError:
                continue
            fields = stat[stat.rindex(b")") + 2 :].split()
            if int(fields[2]) not in self._groups:
                self._others.add(pid)  # for good: no process of another program enters a group
                continue
            own, waited = int(fields[11]) + int(fields[12]), int(fields[13]) + int(fields[14])
            resident = int(fields[21]) * _PAGE_BYTES
            runs, started, threads = fields[0] == b"R", int(fields[19]), int(fields[17])
            self._members[pid] = _Stat(runs, started, threads, own / _TICKS, waited / _TICKS, resident)
