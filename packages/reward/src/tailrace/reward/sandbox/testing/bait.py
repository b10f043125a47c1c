"""Things of this process and of its machine that hostile programs are after, and a look at what became of them."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import secrets
import signal
import socket
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

_BOOT_MARK = b"_sitebuiltins.Quitter"


class Bait:
    """Sockets, a file, an environment variable and settings of this process. Use it as a context manager."""

    def __init__(self) -> None:
        self._word = secrets.token_hex(8)
        self._signals: list[int] = []
        self._libc = ctypes.CDLL(None, use_errno=True)

    def __enter__(self) -> Self:
        self._folder = tempfile.TemporaryDirectory(prefix="tailrace-bait-")
        folder = Path(self._folder.name)
        folder.chmod(0o755)
        self._file = folder / "secret"
        self._file.write_text(self._word)
        self._file.chmod(0o666)
        self._shared = self._libc.shmget(0, 4096, 0o1600)  # IPC_CREAT, for its owner
        self._tcp = socket.create_server(("127.0.0.1", 0))
        self._udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._udp.bind(("127.0.0.1", 0))
        self._sockets = [self._tcp, self._udp]
        for suffix, kind in (("", socket.SOCK_STREAM), ("-datagram", socket.SOCK_DGRAM)):
            for address in (str(folder / f"socket{suffix}"), f"\0{self._word}{suffix}"):
                made = socket.socket(socket.AF_UNIX, kind)
                made.bind(address)
                if kind == socket.SOCK_STREAM:
                    made.listen()
                else:
                    Path(address).chmod(0o666) if address[0] == "/" else None
                self._sockets.append(made)
        (folder / "socket").chmod(0o666)
        for made in self._sockets:
            made.setblocking(False)
        os.environ["TAILRACE_BAIT"] = self._word
        self._handler = signal.signal(signal.SIGTERM, lambda number, _: self._signals.append(number))
        self._before = self._state()
        self._clock = time.time() - time.monotonic()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        signal.signal(signal.SIGTERM, self._handler)
        del os.environ["TAILRACE_BAIT"]
        self._libc.shmctl(self._shared, 0, None)  # IPC_RMID
        for made in self._sockets:
            made.close()
        self._folder.cleanup()

    def given(self) -> dict[str, Any]:
        """What a program is told of it."""
        return {
            "word": self._word,
            "file": str(self._file),
            "home": str(Path.home()),
            "unix": str(self._file.with_name("socket")),
            "tcp": self._tcp.getsockname()[1],
            "udp": self._udp.getsockname()[1],
            "pid": os.getpid(),
            "shm": self._shared,
            "repository": str(Path(__file__).parent),
        }

    def harms(self) -> list[str]:
        """What was reached, changed or left, one line each."""
        found = [f"the socket {made.getsockname()!r} was reached" for made in self._sockets if _reached(made)]
        found += [f"signal {number} came through" for number in self._signals]
        if abs(time.time() - time.monotonic() - self._clock) > 1:
            found.append("the clock was changed")
        after = self._state()
        changed = [what for what in after if self._before[what] != after[what]]
        found += [f"{what}: {self._before[what]} before, {after[what]} after" for what in changed]
        return found + [f"a process is left: {line}" for line in _left_processes()]

    def _state(self) -> dict[str, Any]:
        library = Path(os.__file__).parent
        return {
            "the secret file": (self._file.read_text(), self._file.stat().st_nlink, self._file.stat().st_mode),
            "open file limit": resource.getrlimit(resource.RLIMIT_NOFILE),
            "priority": os.getpriority(os.PRIO_PROCESS, 0),
            "affinity": os.sched_getaffinity(0),
            "scheduler": os.sched_getscheduler(0),
            "shared memory": sorted(name for name in os.listdir("/dev/shm") if "hostile" in name),  # noqa: PTH208, S108
            "SysV shared memory": [
                # key, id, permissions, and who is attached
                line.split()[:2] + line.split()[6:7]
                for line in Path("/proc/sysvipc/shm").read_text().splitlines()
                if " 4711 " in line or line.split()[1] == str(self._shared)
            ],
            "the interpreter": (Path(sys.executable).stat().st_mtime_ns, Path(sys.executable).stat().st_nlink),
            "the library": (library.stat().st_mtime_ns, (library / "os.py").stat().st_mtime_ns),
            "compiled files": (library / "json" / "__pycache__").stat().st_mtime_ns,
            "files of programs": sorted(str(path) for path in Path(tempfile.gettempdir()).glob("tailrace-hostile*")),
        }


def _reached(made: socket.socket) -> bool:
    with contextlib.suppress(BlockingIOError):
        if made.type == socket.SOCK_STREAM:
            made.accept()[0].close()
        else:
            made.recv(64)
        return True
    return False


def _left_processes() -> list[str]:
    """Programs that still run below this process, or below none that could be the supervisor of another sandbox."""
    parents: dict[int, int] = {}
    programs: list[int] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                stat = (entry / "stat").read_text()
                parents[int(entry.name)] = int(stat[stat.rindex(")") + 2 :].split()[1])
                if entry.stat().st_uid == os.geteuid() and _BOOT_MARK in (entry / "cmdline").read_bytes():
                    programs.append(int(entry.name))
    return [str(pid) for pid in programs if _is_ours(pid, parents, programs)]


def _is_ours(pid: int, parents: dict[int, int], programs: list[int]) -> bool:
    while pid in programs:
        pid = parents.get(pid, 0)
    if pid in (0, 1):
        return True  # an orphan that nobody supervises
    while pid not in (0, 1, os.getpid()):
        pid = parents.get(pid, 0)
    return pid == os.getpid()
