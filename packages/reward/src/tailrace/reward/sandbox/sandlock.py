"""The backend ``sandlock``: Landlock and a system call filter confine each program; no root and no namespaces are needed.

sandlock's own runs (`Sandbox.run`) pass each open, close and wait of a program through a supervisor thread, which costs half
of the time of a short program, and leave the bare ``fork`` call uncounted. Only its Landlock part is used here, in a process
that then becomes the program; limits are the supervisor's, and the filter is ours.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from tailrace.reward.errors import NoSandboxError
from tailrace.reward.sandbox import interpreter
from tailrace.reward.sandbox.interpreter import module_files
from tailrace.reward.sandbox.launch import SandboxFailureError, start_group
from tailrace.reward.sandbox.limits import Ended, Limits
from tailrace.reward.sandbox.process_group import ProcessGroup
from tailrace.reward.sandbox.scratch import scratch_size
from tailrace.reward.sandbox.seccomp import program_filter
from tailrace.reward.sandbox.supervised import SupervisedSandbox

_PR_CAPBSET_DROP = 24
_CAP_VERSION_3 = 0x20080522
_libc = ctypes.CDLL(None, use_errno=True)


def drop_capabilities() -> None:
    """Give up every capability, so that being root is worth no more than owning root's files.

    Raises:
        OSError: the kernel refused.
    """
    capability = 0
    while _libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0) == 0:  # fails past the last one, and for a user
        capability += 1
    header = (ctypes.c_uint32 * 2)(_CAP_VERSION_3, 0)
    nothing = (ctypes.c_uint32 * 6)()
    _check(_libc.capset(header, nothing), "capset")


def _check(status: int, what: str) -> None:
    if status != 0:
        raise OSError(ctypes.get_errno(), f"{what}: {os.strerror(ctypes.get_errno())}")


NAME = "sandlock"


def sandlock_sandbox(workers: str = "", modules: Sequence[str] = ()) -> SupervisedSandbox:
    """A sandbox of this backend; it starts nothing before its first program.

    Args:
        workers: programs at a time, as a number; by default, one for each CPU of this process.
        modules: installed modules that programs may import.

    Raises:
        NoSandboxError: sandlock or a module is not installed, or this kernel's Landlock is too old for it.
    """
    try:
        import sandlock
    except ImportError:
        raise NoSandboxError("not installed: pip install 'tailrace-reward[sandbox]'") from None
    found, needed = sandlock.landlock_abi_version(), sandlock.min_landlock_abi()
    if found < needed:
        raise NoSandboxError(f"this kernel has Landlock ABI {found}, expected at least {needed} (Linux 6.12)")
    return SupervisedSandbox(
        NAME, "tailrace.reward.sandbox.sandlock:SandlockLauncher", workers, module_files(tuple(modules))
    )


class SandlockLauncher:
    """Starts programs under Landlock."""

    def __init__(self, modules: Mapping[str, str]) -> None:
        import sandlock

        self._modules = modules
        self._sandlock = sandlock
        self._filter = program_filter()
        visible = (*interpreter.visible_files(), *modules.values(), *_devices("zero", "urandom", "random"))
        self._readable = [str(path) for path in visible]
        self._devices = [str(path) for path in _devices("null")]

    def start(self, program: Path, scratch: Path, limits: Limits, streams: tuple[int, int, int]) -> ProcessGroup:
        readable, writable = [*self._readable, str(program)], [*self._devices, str(scratch)]

        def confine() -> None:
            os.chdir(scratch)
            drop_capabilities()
            self._sandlock.confine(self._sandlock.Sandbox(fs_readable=readable, fs_writable=writable))

        command = interpreter.command(program, self._modules)
        return start_group(command, streams, limits, confine, system_calls=self._filter)

    def helpers(self, group: ProcessGroup) -> frozenset[int]:  # noqa: ARG002 (there are none)
        return frozenset()

    def scratch_bytes(self, scratch: Path, group: ProcessGroup) -> int:  # noqa: ARG002 (it lies on the host)
        return scratch_size(scratch)

    def ended(self, group: ProcessGroup) -> Ended:
        if group.status is None:
            raise SandboxFailureError("the program was lost")
        code = os.waitstatus_to_exitcode(group.status)
        return Ended(code if code >= 0 else 128 - code, group.reaped_cpu_s, group.peak_bytes)


def _devices(*names: str) -> list[Path]:
    return [path for name in names if (path := Path("/dev", name)).exists()]
