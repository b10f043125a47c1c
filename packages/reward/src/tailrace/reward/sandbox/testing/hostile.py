"""Runs a table of hostile programs in a sandbox and reports what each got, and what is left of them all.

The bait are things of this process and of its machine that hostile programs are after.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import os
import platform
import resource
import secrets
import signal
import socket
import sys
import tempfile
import time
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tailrace.reward.sandbox.limits import Limits
from tailrace.reward.sandbox.protocol import RunVerdict, Sandbox
from tailrace.reward.sandbox.seccomp import DENIED_CALLS

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


LIMITS = Limits(cpu_s=0.5, wall_s=1.5, memory_mib=64, processes=8, output_kib=16, scratch_mib=2)
"""Tight, so that the whole table takes seconds."""
_MORE_CALLS = {
    "clone": (56, 220), "clone3": (435, 435), "fork": (57, None), "ioprio_set": (251, 30), "rt_sigqueueinfo": (129, 138),
    "tgkill": (234, 131), "sync": (162, 81), "syncfs": (306, 267), "fsync": (74, 82), "fdatasync": (75, 83),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class HostileProgram:
    """A program of the table. ``ends`` says how it must end, as ``verdict`` or ``verdict:limit``; empty if it matters not."""

    name: str
    source: str
    ends: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class HostileOutcome:
    """What became of one program.

    Args:
        name: the program's.
        end: its verdict, with its limit if it met one.
        faults: what is wrong with that, one line each; empty if it was held.
        late_s: seconds that it took beyond its wall limit, or less than 0.
    """

    name: str
    end: str
    faults: tuple[str, ...]
    late_s: float


def _table() -> dict[str, HostileProgram]:
    here = files("tailrace.reward.sandbox.testing")
    found = tomllib.loads(here.joinpath("hostile.toml").read_text(encoding="utf-8"))
    return {name: HostileProgram(name, row["source"], tuple(row.get("ends", ()))) for name, row in found.items()}


HOSTILE = _table()


async def run_hostile(
    sandbox: Sandbox, names: Sequence[str] = tuple(HOSTILE), *, together: int = 8
) -> tuple[list[HostileOutcome], list[str]]:
    """Run programs of the table, and look at what they left.

    Args:
        sandbox: the sandbox under test; if it has ``pids``, these are attacked.
        names: which programs.
        together: programs at a time.

    Returns:
        An outcome for each program, and what is left of them or was harmed, one line each.
    """
    prelude = files("tailrace.reward.sandbox.testing").joinpath("hostile_prelude.py.txt").read_text(encoding="utf-8")
    turns = asyncio.Semaphore(together)
    with Bait() as bait:
        await sandbox.run("pass", limits=LIMITS)  # so that there is a supervisor to attack
        supervisors: tuple[int, ...] = getattr(sandbox, "pids", ()) or (os.getpid(),)
        given = bait.given() | {"supervisor": supervisors[0], "calls": _calls()}
        start = prelude.replace("GIVEN", repr(json.dumps(given)))

        async def run_one(program: HostileProgram) -> HostileOutcome:
            async with turns:
                run = await sandbox.run(start + program.source, stdin=b"x" * 100_000, limits=LIMITS)
            end = f"{run.verdict}:{run.limit}" if run.limit else str(run.verdict)
            faults = [line for line in run.stdout.decode(errors="replace").splitlines() if line.startswith("ESCAPED")]
            if run.verdict is RunVerdict.INFRASTRUCTURE:
                faults.append(f"the sandbox failed: {run.reason}")
            elif program.ends and end not in program.ends:
                last = (run.stderr.decode(errors="replace").strip().splitlines() or [""])[-1]
                faults.append(f"it ended with {end}, expected {' or '.join(program.ends)}; its last line: {last:.200}")
            if len(run.stdout) > LIMITS.output_kib << 10 or len(run.stderr) > LIMITS.output_kib << 10:
                faults.append("more output was kept than the limit allows")
            return HostileOutcome(program.name, end, tuple(faults), run.wall_s - LIMITS.wall_s)

        outcomes = list(await asyncio.gather(*(run_one(HOSTILE[name]) for name in names)))
        for place, outcome in enumerate(outcomes):
            if (
                outcome.end == "over-budget:wall" and outcome.faults
            ):  # the others may have had its CPU: once more, alone
                outcomes[place] = await run_one(HOSTILE[outcome.name])
        after = await sandbox.run("import os; print(os.listdir('.'))", limits=LIMITS)
        harms = bait.harms()
        if after.stdout.strip() != b"[]":
            harms.append(
                f"a later program does not start with an empty scratch directory: {after.stdout!r} {after.reason}"
            )
    return outcomes, harms


def _calls() -> dict[str, int]:
    column = 0 if platform.machine() == "x86_64" else 1
    return {name: at[column] for name, at in (DENIED_CALLS | _MORE_CALLS).items() if at[column] is not None}  # type: ignore[misc]
