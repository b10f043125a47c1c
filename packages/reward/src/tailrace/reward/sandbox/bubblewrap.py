"""The backend ``bubblewrap``: namespaces made by ``bwrap`` confine each program, on kernels whose Landlock is too old.

A program sees a root of its own, in which its scratch directory is the only place to write, no /proc, and a network of its
own. The scratch directory is in memory and ends with its namespace.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from tailrace.reward.errors import NoSandboxError
from tailrace.reward.sandbox import interpreter
from tailrace.reward.sandbox.interpreter import module_files
from tailrace.reward.sandbox.launch import SandboxFailureError, start_group
from tailrace.reward.sandbox.limits import Ended, Limits
from tailrace.reward.sandbox.process_group import ProcessGroup
from tailrace.reward.sandbox.seccomp import program_filter
from tailrace.reward.sandbox.supervised import SupervisedSandbox

NAME = "bubblewrap"
_MIB = 1 << 20
_ENTRY_BYTES = 4096
_NOBODY = "65534"
_SCRATCH = "/scratch"
_REPORT_BYTES = 1 << 14


def bubblewrap_sandbox(workers: str = "", modules: Sequence[str] = ()) -> SupervisedSandbox:
    """A sandbox of this backend; it starts nothing before its first program.

    Args:
        workers: programs at a time, as a number; by default, one for each CPU of this process.
        modules: installed modules that programs may import.

    Raises:
        NoSandboxError: bwrap or a module is not installed.
    """
    if shutil.which("bwrap") is None:
        raise NoSandboxError("bwrap is not installed: apt install bubblewrap")
    return SupervisedSandbox(
        NAME, "tailrace.reward.sandbox.bubblewrap:BubblewrapLauncher", workers, module_files(tuple(modules))
    )


class BubblewrapLauncher:
    """Starts programs under bwrap."""

    def __init__(self, modules: Mapping[str, str]) -> None:
        self._modules = modules
        self._bwrap = shutil.which("bwrap") or "bwrap"
        self._filter = program_filter()
        self._report = -1
        self._said = b""

    def start(
        self,
        program: Path,
        scratch: Path,  # noqa: ARG002 (it is inside)
        limits: Limits,
        streams: tuple[int, int, int],
    ) -> ProcessGroup:
        self._said = b""
        reading, writing = os.pipe()
        lines, into = os.pipe()
        os.write(into, self._filter)  # fits a pipe
        os.close(into)
        try:
            command = [self._bwrap, *self._arguments(program, limits, writing, lines)]
            group = start_group(command, streams, limits, kept=(writing, lines))
        except BaseException:
            os.close(reading)
            raise
        finally:
            os.close(writing)
            os.close(lines)
        os.set_blocking(reading, False)
        self._close()
        self._report = reading
        return group

    def helpers(self, group: ProcessGroup) -> frozenset[int]:
        """The outer bwrap, and the first process of the namespace, which leads the group of the program."""
        if first := self._first():
            group.add(first)
        return frozenset({group.leader, first})

    def scratch_bytes(self, scratch: Path, group: ProcessGroup) -> int:  # noqa: ARG002 (it is inside)
        for pid in group.members():
            with contextlib.suppress(OSError):
                found = os.statvfs(f"/proc/{pid}/root{_SCRATCH}")
                if found.f_files > 0 and pid not in (group.leader, self._first()):
                    files = found.f_files - found.f_ffree
                    return (found.f_blocks - found.f_bfree) * found.f_frsize + _ENTRY_BYTES * files
        return 0

    def ended(self, group: ProcessGroup) -> Ended:
        code = next((said["exit-code"] for said in self._reports() if "exit-code" in said), None)
        self._close()
        if code is None:
            raise SandboxFailureError(f"bwrap ended with status {group.status} and said nothing of the program")
        return Ended(code, group.reaped_cpu_s, group.peak_bytes)

    def _arguments(self, program: Path, limits: Limits, report: int, filter_lines: int) -> list[str]:
        visible = [item for path in interpreter.visible_files() for item in ("--ro-bind", str(path), str(path))]
        packages = interpreter.standard_library() / "site-packages"
        given = [item for path in self._modules.values() for item in ("--ro-bind", path, path)]
        hiding = ("--size", "4096", "--tmpfs", str(packages)), ("--remount-ro", str(packages))
        before, after = hiding if packages.is_dir() else ((), ())
        links = [("--symlink", f"usr/{name}", f"/{name}") for name in ("lib", "lib64") if Path("/", name).is_symlink()]
        return [
            *("--unshare-all", "--unshare-user", "--disable-userns", "--uid", _NOBODY, "--gid", _NOBODY),
            *("--cap-drop", "ALL", "--hostname", "sandbox", "--die-with-parent", "--clearenv"),
            *(item for link in links for item in link),
            *visible,
            *before,
            *given,
            *after,
            *("--ro-bind", str(program), "/program"),
            *(
                item
                for name in ("null", "zero", "random", "urandom")
                for item in ("--dev-bind", *2 * (f"/dev/{name}",))
            ),
            # No /proc: where root made the namespace, the kernel lets it write settings of the whole machine there.
            *("--new-session", "--size", str(limits.scratch_mib * _MIB), "--tmpfs", _SCRATCH, "--chdir", _SCRATCH),
            *("--remount-ro", "/", "--json-status-fd", str(report), "--seccomp", str(filter_lines), "--"),
            *interpreter.command(Path("/program"), self._modules),
        ]

    def _first(self) -> int:
        return next((said["child-pid"] for said in self._reports() if "child-pid" in said), 0)

    def _reports(self) -> list[dict[str, int]]:
        if self._report >= 0:
            with contextlib.suppress(BlockingIOError):
                self._said += os.read(self._report, _REPORT_BYTES)
        return [json.loads(line) for line in self._said.splitlines() if line.endswith(b"}")]

    def _close(self) -> None:
        if self._report >= 0:
            os.close(self._report)
        self._report = -1
