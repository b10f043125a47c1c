"""The backend ``sandlock``: Landlock and seccomp confine each program; no root and no namespaces are needed.

Each program gets a runner of its own, a fork of the supervisor in which sandlock's supervision threads live: what goes wrong
in them ends with the program.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import threading
import time
from pathlib import Path
from typing import Any

from tailrace.reward.errors import NoSandboxError
from tailrace.reward.sandbox import interpreter
from tailrace.reward.sandbox.protocol import Limits
from tailrace.reward.sandbox.supervised import SupervisedSandbox
from tailrace.reward.sandbox.supervisor import Ended, SandboxFailureError, Started

NAME = "sandlock"
_DENIED = ("memfd_create",)
_ENTRY_BYTES = 4096
_ORPHAN_CHECK_S = 0.1


def sandlock_sandbox() -> SupervisedSandbox:
    """A sandbox of this backend; it starts nothing before its first program.

    Raises:
        NoSandboxError: sandlock is not installed, or this kernel's Landlock is too old for it.
    """
    try:
        import sandlock
    except ImportError:
        raise NoSandboxError("sandlock is not installed: pip install 'tailrace-reward[sandbox]'") from None
    found, needed = sandlock.landlock_abi_version(), sandlock.min_landlock_abi()
    if found < needed:
        raise NoSandboxError(f"this kernel has Landlock ABI {found}, sandlock needs {needed} (Linux 6.12)")
    return SupervisedSandbox(NAME, "tailrace.reward.sandbox.sandlock:SandlockLauncher")


class SandlockLauncher:
    """Starts programs under sandlock."""

    def __init__(self) -> None:
        import sandlock

        self._sandlock = sandlock
        self._readable = [str(path) for path in interpreter.visible_files()]

    def start(self, program: Path, scratch: Path, limits: Limits, stdio: tuple[int, int, int]) -> Started:
        reading, writing = os.pipe()
        supervisor = os.getpid()
        pid = os.fork()
        if pid == 0:
            try:
                os.setsid()
                for theirs, ours in enumerate(stdio):
                    os.dup2(ours, theirs)
                os.dup2(writing, 3)
                os.closerange(4, 1 << 16)
                _end_with(supervisor)
                report = self._run(program, scratch, limits)
                os.write(3, json.dumps(report).encode())
            except BaseException as error:
                with contextlib.suppress(OSError):
                    os.write(3, json.dumps({"failure": f"{type(error).__name__}: {error}"}).encode())
            finally:
                os._exit(0)
        os.close(writing)
        return Started(pid, reading, {pid})

    def helpers(self, started: Started) -> set[int]:
        return started.helpers

    def scratch_bytes(self, started: Started, scratch: Path) -> int:  # noqa: ARG002 (this backend's is on the host)
        total = 0
        for folder, names, files in os.walk(scratch):
            total += _ENTRY_BYTES * (len(names) + len(files))
            for name in files:
                with contextlib.suppress(OSError):
                    total += Path(folder, name).lstat().st_blocks * 512
        return total

    def ended(self, report: bytes, usage: Any) -> Ended:  # noqa: ARG002 (the runner's usage is not the program's)
        if not report:
            raise SandboxFailureError("the runner of the program ended without a report")
        said = json.loads(report)
        if "failure" in said:
            raise SandboxFailureError(said["failure"])
        return Ended(said["exit_code"], said["cpu_s"], said["peak_bytes"])

    def _run(self, program: Path, scratch: Path, limits: Limits) -> dict[str, Any]:
        sandbox = self._sandlock.Sandbox(
            fs_readable=[*self._readable, str(program)],
            fs_writable=[str(scratch)],
            cwd=str(scratch),
            clean_env=True,
            max_processes=limits.processes,
            extra_deny_syscalls=_DENIED,
        )
        process = sandbox.popen(interpreter.command(program, limits))
        result = process.wait()
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        code = result.exit_code if result.signal < 0 else 128 + result.signal
        return {"exit_code": code, "cpu_s": used.ru_utime + used.ru_stime, "peak_bytes": used.ru_maxrss << 10}


def _end_with(supervisor: int) -> None:
    """Kill the program's tree when the supervisor dies, from a thread, since the main one is inside sandlock."""

    def watch() -> None:
        while os.getppid() == supervisor:
            time.sleep(_ORPHAN_CHECK_S)
        os.killpg(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()
