"""The process that runs programs one at a time, watches each one's process tree, and ends it at its limits.

Consumes: requests on stdin. Waits for: the program, its output and its limits, with a look at the tree every 20 ms.
Yields: for each request one reply on stdout, after the last process of the tree is gone.

It is trusted code with nothing of ours in its environment, and serves many programs; each program gets fresh processes.
A request is a JSON line with the sizes of what follows it. The line ``cancel`` ends the program under way. When stdin
closes, the tree is killed and the supervisor leaves.
"""

from __future__ import annotations

import json
import os
import selectors
import shutil
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

from tailrace.reward.sandbox.process_tree import ProcessTree, become_subreaper
from tailrace.reward.sandbox.protocol import Limits

_POLL_S = 0.02
_KILL_S = 10.0
_READ_BYTES = 1 << 16
_MIB = 1 << 20
_THREADS_PER_PROCESS = 8
_CANCEL = b"cancel\n"


class SandboxFailureError(Exception):
    """The sandbox failed, not the program."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How the program's first process ended. ``cpu_s`` and ``peak_bytes`` (of one process) are of the whole tree."""

    exit_code: int
    cpu_s: float
    peak_bytes: int


@dataclass(slots=True)
class Started:
    """A program under way.

    Args:
        pid: the child of this process that ends when the program's first process has ended.
        status: a descriptor from which the launcher's own report can be read once `pid` has ended.
        helpers: processes of ours in its tree.
    """

    pid: int
    status: int
    helpers: set[int] = field(default_factory=set)


class Launcher(Protocol):
    """Starts programs in one kind of isolation."""

    def start(self, program: Path, scratch: Path, limits: Limits, stdio: tuple[int, int, int]) -> Started:
        """Start a program file with these descriptors as stdin, stdout and stderr.

        Raises:
            SandboxFailureError: it could not be started.
        """

    def helpers(self, started: Started) -> set[int]:
        """Processes of ours in the program's tree, as far as they are known by now."""

    def scratch_bytes(self, started: Started, scratch: Path) -> int:
        """Bytes of files in the scratch directory, a small amount for each file's entry included."""

    def ended(self, report: bytes, usage: Any) -> Ended:
        """How the program ended, from the launcher's report and the resource usage of its process.

        Raises:
            SandboxFailureError: the report says that the sandbox failed, or says nothing.
        """


@dataclass(slots=True)
class _Stream:
    """One output of the program: kept up to a limit, then counted."""

    limit: int
    kept: bytearray = field(default_factory=bytearray)
    truncated: bool = False

    def add(self, part: bytes) -> None:
        room = self.limit - len(self.kept)
        self.kept += part[:room]
        self.truncated = self.truncated or len(part) > room


class Supervisor:
    """Serves requests from a descriptor until it closes.

    Args:
        launcher: starts the programs.
        folder: a directory of its own; it is emptied after each program.
        control: the descriptor that requests come from, non-blocking.
        replies: the descriptor that replies go to.
    """

    def __init__(self, launcher: Launcher, folder: Path, control: int, replies: int) -> None:
        self._launcher, self._folder, self._control, self._replies = launcher, folder, control, replies
        self._given = bytearray()
        self._closed = False
        self._tree = ProcessTree()

    def serve(self) -> None:
        """Serve requests until the control descriptor closes."""
        while (request := self._request()) is not None:
            source, stdin, limits = request
            program, scratch = self._folder / "program", self._folder / "scratch"
            try:
                scratch.mkdir()
                program.write_bytes(source)
                header, stdout, stderr = self._run(program, scratch, stdin, limits)
            except (OSError, SandboxFailureError) as error:
                header, stdout, stderr = _failure(f"{type(error).__name__}: {error}"), b"", b""
            if not self._tree.kill(_KILL_S):
                raise SystemExit("processes of a program do not end")
            self._clear()
            header |= {"stdout": len(stdout), "stderr": len(stderr)}
            _write(self._replies, json.dumps(header).encode() + b"\n" + stdout + stderr)

    def _run(self, program: Path, scratch: Path, stdin: bytes, limits: Limits) -> tuple[dict[str, Any], bytes, bytes]:
        pipes = [os.pipe() for _ in range(3)]
        theirs = (pipes[0][0], pipes[1][1], pipes[2][1])
        ours = (pipes[0][1], pipes[1][0], pipes[2][0])
        begun = time.monotonic()
        try:
            started = self._launcher.start(program, scratch, limits, theirs)
        except BaseException:
            for fd in (*theirs, *ours):
                os.close(fd)
            raise
        for fd in theirs:
            os.close(fd)
        streams = {ours[1]: _Stream(limits.output_kib << 10), ours[2]: _Stream(limits.output_kib << 10)}
        try:
            limit, usage = self._watch(started, ours[0], memoryview(stdin), streams, limits, scratch, begun)
            wall_s = time.monotonic() - begun
            if not self._tree.kill(_KILL_S):
                raise SystemExit("processes of a program do not end")
            for fd, stream in streams.items():
                _drain(fd, stream)
            report = b"" if limit else os.read(started.status, _READ_BYTES)
            scratch_bytes = self._launcher.scratch_bytes(started, scratch)
        finally:
            for fd in (*streams, started.status):
                os.close(fd)
        truncated = any(stream.truncated for stream in streams.values())
        outputs = bytes(streams[ours[1]].kept), bytes(streams[ours[2]].kept)
        used = {"truncated": truncated, "wall_s": wall_s}
        if limit == "cancel":
            return _failure("the run was cancelled") | used, *outputs
        if limit:
            return {"verdict": "over-budget", "limit": limit, "exit_code": None, "cpu_s": usage, **used}, *outputs
        try:
            ended = self._launcher.ended(report, usage)
        except SandboxFailureError as error:
            return _failure(str(error)) | used, *outputs
        over = _over_at_end(ended, truncated, scratch_bytes, limits)
        verdict = "over-budget" if over else "ok" if ended.exit_code == 0 else "error"
        header = {"verdict": verdict, "limit": over, "exit_code": ended.exit_code, "cpu_s": ended.cpu_s, **used}
        return header, *outputs

    def _watch(
        self,
        started: Started,
        stdin: int,
        sending: memoryview,
        streams: dict[int, _Stream],
        limits: Limits,
        scratch: Path,
        begun: float,
    ) -> tuple[str, Any]:
        """Wait for the end: ``("", resource usage)``, or the limit that was met and the CPU seconds so far."""
        tree = self._tree = ProcessTree()
        ends, looked, cpu_s = begun + limits.wall_s, begun, 0.0
        with selectors.DefaultSelector() as selector:
            selector.register(self._control, selectors.EVENT_READ)
            os.set_blocking(stdin, False)
            selector.register(stdin, selectors.EVENT_WRITE)
            for fd in streams:
                os.set_blocking(fd, False)
                selector.register(fd, selectors.EVENT_READ)
            leader = os.pidfd_open(started.pid)
            selector.register(leader, selectors.EVENT_READ)
            try:
                while True:
                    pause = max(0.0, min(looked + _POLL_S, ends) - time.monotonic())
                    for key, _ in selector.select(pause):
                        if key.fd == self._control:
                            if self._cancelled():
                                return "cancel", cpu_s
                        elif key.fd == stdin:
                            sending = _send(selector, stdin, sending)
                        elif key.fd in streams and not _receive(key.fd, streams[key.fd]):
                            selector.unregister(key.fd)
                    if any(stream.truncated for stream in streams.values()):
                        return "output", cpu_s
                    usage = _reap(started.pid)
                    if usage is not None:
                        return "", usage
                    now = time.monotonic()
                    if now >= ends:
                        return "wall", cpu_s
                    if now < looked + _POLL_S:
                        continue
                    looked = now
                    tree.ignored = self._launcher.helpers(started)
                    used = tree.usage()
                    cpu_s = used.cpu_s
                    if cpu_s > limits.cpu_s:
                        return "cpu", cpu_s
                    if used.processes > limits.processes or used.threads > limits.processes * _THREADS_PER_PROCESS:
                        return "processes", cpu_s
                    if used.memory_bytes > limits.memory_mib * _MIB and tree.memory_bytes() > limits.memory_mib * _MIB:
                        return "memory", cpu_s
                    if self._launcher.scratch_bytes(started, scratch) > limits.scratch_mib * _MIB:
                        return "scratch", cpu_s
            finally:
                os.close(leader)
                os.close(stdin)

    def _cancelled(self) -> bool:
        part = os.read(self._control, _READ_BYTES)
        self._closed = self._closed or not part
        self._given += part
        if self._given.startswith(_CANCEL):
            del self._given[: len(_CANCEL)]
            return True
        return self._closed

    def _request(self) -> tuple[bytes, bytes, Limits] | None:
        while not self._closed:
            while self._given.startswith(_CANCEL):  # came after the program had ended
                del self._given[: len(_CANCEL)]
            line, found, rest = bytes(self._given).partition(b"\n")
            if found:
                asked = json.loads(line)
                size, stdin = asked["program"], asked["stdin"]
                if len(rest) >= size + stdin:
                    self._given = bytearray(rest[size + stdin :])
                    return rest[:size], rest[size : size + stdin], Limits(**asked["limits"])
            self._await_control()
        return None

    def _await_control(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._control, selectors.EVENT_READ)
            selector.select()  # it closes when the process that asks is gone
        part = os.read(self._control, _READ_BYTES)
        self._given += part
        self._closed = not part

    def _clear(self) -> None:
        for entry in self._folder.iterdir():
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            else:
                entry.unlink()


def request(program: bytes, stdin: bytes, limits: Limits) -> bytes:
    """A request as it goes to a supervisor's stdin."""
    header = {"program": len(program), "stdin": len(stdin), "limits": asdict(limits)}
    return json.dumps(header).encode() + b"\n" + program + stdin


def _failure(reason: str) -> dict[str, Any]:
    return {
        "verdict": "infrastructure", "limit": None, "exit_code": None, "cpu_s": 0.0, "wall_s": 0.0,
        "truncated": False, "reason": reason,
    }  # fmt: skip


def _over_at_end(ended: Ended, truncated: bool, scratch_bytes: int, limits: Limits) -> str | None:
    """The limit that a program was over when it ended between two looks."""
    if truncated:
        return "output"
    if ended.cpu_s > limits.cpu_s:
        return "cpu"
    if ended.peak_bytes > limits.memory_mib * _MIB:
        return "memory"
    return "scratch" if scratch_bytes > limits.scratch_mib * _MIB else None


def _send(selector: selectors.BaseSelector, fd: int, sending: memoryview) -> memoryview:
    try:
        sending = sending[os.write(fd, sending[:_READ_BYTES]) :] if sending else sending
    except BlockingIOError:
        return sending
    except BrokenPipeError:  # the program does not want the rest
        sending = sending[:0]
    if not sending:
        selector.unregister(fd)
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, fd)  # closes the pipe: the program reads the end of its input
        os.close(null)
    return sending


def _receive(fd: int, stream: _Stream) -> bool:
    try:
        part = os.read(fd, _READ_BYTES)
    except BlockingIOError:
        return True
    stream.add(part)
    return bool(part)


def _drain(fd: int, stream: _Stream) -> None:
    while not stream.truncated:
        try:
            part = os.read(fd, _READ_BYTES)
        except BlockingIOError:
            return
        if not part:
            return
        stream.add(part)


def _reap(leader: int) -> Any:
    """Reap what has ended; the leader's resource usage once it is among them."""
    usage = None
    while True:
        try:
            pid, _, used = os.wait4(-1, os.WNOHANG)
        except ChildProcessError:
            return usage
        if pid == 0:
            return usage
        if pid == leader:
            usage = used


def _write(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def main(launcher: Launcher, folder: Path) -> None:
    """Serve on stdin and stdout, of which programs inherit nothing."""
    control, replies = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    os.close(null)
    os.set_blocking(control, False)
    become_subreaper()
    Supervisor(launcher, folder, control, replies).serve()
    sys.exit(0)
