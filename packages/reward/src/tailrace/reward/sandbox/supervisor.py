"""The process that runs programs one at a time, watches each one's process tree, and ends it at its limits.

Consumes: requests on stdin. Waits for: the program, its output and its limits, with a look at the tree every 20 ms.
Yields: for each request the program's process group once it has started, and one reply after the last process is gone.

It is trusted code with nothing of ours in its environment, and serves many programs; each program gets fresh processes.
A request is a JSON line with the sizes of what follows it. When stdin closes, the tree is killed and the supervisor leaves.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tailrace.processes import private_streams
from tailrace.reward.sandbox.launch import Launcher, SandboxFailureError
from tailrace.reward.sandbox.limits import Limits, over_at_end, over_while_running, too_many
from tailrace.reward.sandbox.process_group import ProcessGroup, Usage, become_subreaper
from tailrace.reward.sandbox.scratch import empty, remove

_POLL_S = 0.02
_WORK_S = 0.02  # less CPU time than this is waiting; the kernel tells it in hundredths of a second
_KILL_S = 10.0
_READ_BYTES = 1 << 16
_KILLED = 128 + 9
_CANCELLED = "cancelled"


@dataclass(slots=True)
class _Stream:
    """One output of the program, kept up to a limit."""

    fd: int
    limit: int
    kept: bytearray = field(default_factory=bytearray)
    truncated: bool = False

    def receive(self) -> bool:
        """Read once; False at the end."""
        try:
            part = os.read(self.fd, _READ_BYTES)
        except BlockingIOError:
            return True
        return self._add(part)

    def drain(self) -> None:
        """Read what the pipe still holds, when nobody writes any more."""
        with contextlib.suppress(BlockingIOError):
            while not self.truncated and self._add(os.read(self.fd, _READ_BYTES)):
                pass

    def _add(self, part: bytes) -> bool:
        room = self.limit - len(self.kept)
        self.kept += part[:room]
        self.truncated = self.truncated or len(part) > room
        return bool(part)


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
            cleared = True
            try:
                empty(self._folder)
            except OSError:
                cleared = False  # what the program did is known all the same; the next one gets another supervisor
            if self._closed:
                return
            header |= {"stdout": len(stdout), "stderr": len(stderr)}
            _write(self._replies, json.dumps(header).encode() + b"\n" + stdout + stderr)
            if not cleared:
                return

    def _run(self, program: Path, scratch: Path, stdin: bytes, limits: Limits) -> tuple[dict[str, Any], bytes, bytes]:
        pipes = [os.pipe() for _ in range(3)]
        theirs = (pipes[0][0], pipes[1][1], pipes[2][1])
        ours = (pipes[0][1], pipes[1][0], pipes[2][0])
        begun = time.monotonic()
        try:
            group = self._launcher.start(program, scratch, limits, theirs)
        except BaseException:
            for fd in ours:
                os.close(fd)
            raise
        finally:
            for fd in theirs:
                os.close(fd)
        _write(self._replies, json.dumps({"group": group.leader}).encode() + b"\n")
        oom_kills = _oom_kills()
        out, err = _Stream(ours[1], limits.output_kib << 10), _Stream(ours[2], limits.output_kib << 10)
        try:
            limit, cpu_s = self._watch(group, ours[0], memoryview(stdin), (out, err), limits, scratch, begun)
            scratch_bytes = self._launcher.scratch_bytes(scratch, group)
        finally:
            ended = group.kill(_KILL_S)
            wall_s = time.monotonic() - begun
            for stream in (out, err):
                stream.drain()
                os.close(stream.fd)
        if not ended:
            raise SystemExit("processes of a program do not end")
        truncated = out.truncated or err.truncated
        used: dict[str, Any] = {"truncated": truncated, "wall_s": wall_s}
        outputs = bytes(out.kept), bytes(err.kept)
        if limit == _CANCELLED:
            return _failure("nobody waits for the run any more") | used, *outputs
        if limit:
            cpu_s = max(cpu_s, group.reaped_cpu_s)
            return {"verdict": "over-budget", "limit": limit, "exit_code": None, "cpu_s": cpu_s, **used}, *outputs
        try:
            end = self._launcher.ended(group)
        except SandboxFailureError as error:
            return _failure(str(error)) | used, *outputs
        over = over_at_end(end, truncated, scratch_bytes, limits)
        if over is None and end.exit_code == _KILLED and _oom_kills() != oom_kills:
            return _failure("the machine ran out of memory") | used, *outputs
        verdict = "over-budget" if over else "ok" if end.exit_code == 0 else "error"
        header = {"verdict": verdict, "limit": over, "exit_code": end.exit_code, "cpu_s": end.cpu_s, **used}
        return header, *outputs

    def _watch(
        self,
        group: ProcessGroup,
        stdin: int,
        sending: memoryview,
        streams: tuple[_Stream, _Stream],
        limits: Limits,
        scratch: Path,
        begun: float,
    ) -> tuple[str, float]:
        """Wait for the end of the program's first process; the limit that was met before, or "", and CPU seconds so far."""
        ends, looked, cpu_s = begun + limits.wall_s, begun, 0.0
        worked, worked_s = begun, 0.0
        processes = threads = 1  # at the last look
        leader = os.pidfd_open(group.leader)
        try:
            with selectors.DefaultSelector() as selector:
                selector.register(self._control, selectors.EVENT_READ)
                selector.register(leader, selectors.EVENT_READ)
                if group.listener is not None:
                    selector.register(group.listener, selectors.EVENT_READ)
                os.set_blocking(stdin, False)
                selector.register(stdin, selectors.EVENT_WRITE)
                for stream in streams:
                    os.set_blocking(stream.fd, False)
                    selector.register(stream.fd, selectors.EVENT_READ, stream)
                while True:
                    asked = False
                    for key, _ in selector.select(max(0.0, min(looked + _POLL_S, ends) - time.monotonic())):
                        asked = asked or key.fd == group.listener
                        if key.fd == self._control:
                            self._listen()
                        if key.fd == stdin:
                            sending = _send(selector, stdin, sending)
                        if key.data and not key.data.receive():
                            selector.unregister(key.fd)
                    if self._closed:
                        return _CANCELLED, cpu_s
                    if any(stream.truncated for stream in streams):
                        return "output", cpu_s
                    group.reap()
                    if group.status is not None:
                        return "", cpu_s
                    now = time.monotonic()
                    if now >= ends:
                        return "wall", cpu_s
                    full = too_many(processes + group.started_processes, threads + group.started_threads, limits)
                    if now >= looked + _POLL_S or (asked and full):
                        looked = now
                        limit, used = self._look(group, limits, scratch)
                        cpu_s, processes, threads = used.cpu_s, used.processes, used.threads
                        if limit:
                            return limit, cpu_s
                        if used.runs or cpu_s >= worked_s + _WORK_S:
                            worked, worked_s = now, cpu_s
                        elif limits.idle_s is not None and now - worked > limits.idle_s:
                            return "idle", cpu_s
                    if asked:
                        group.let_start()
        finally:
            os.close(leader)
            os.close(stdin)

    def _look(self, group: ProcessGroup, limits: Limits, scratch: Path) -> tuple[str, Usage]:
        used = group.usage(self._launcher.helpers(group))
        limit = over_while_running(
            used,
            limits,
            shared_bytes=group.shared_memory_bytes,
            scratch_bytes=lambda: self._launcher.scratch_bytes(scratch, group),
        )
        return limit, used

    def _listen(self) -> None:
        part = os.read(self._control, _READ_BYTES)
        self._given += part
        self._closed = not part

    def _request(self) -> tuple[bytes, bytes, Limits] | None:
        end = sizes = 0
        asked: dict[str, Any] = {}
        while not asked or len(self._given) < sizes:
            if not asked and (end := self._given.find(b"\n") + 1):
                asked = json.loads(self._given[:end])
                sizes = end + asked["program"] + asked["stdin"]
                continue
            if self._closed:
                return None
            self._await_control()
        program = end + asked["program"]
        found = bytes(self._given[end:program]), bytes(self._given[program:sizes]), Limits(**asked["limits"])
        del self._given[:sizes]
        return found

    def _await_control(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._control, selectors.EVENT_READ)
            selector.select()  # it closes when the process that asks is gone
        self._listen()


def request(program: bytes, stdin: bytes, limits: Limits) -> bytes:
    """A request as it goes to a supervisor's stdin."""
    header = {"program": len(program), "stdin": len(stdin), "limits": asdict(limits)}
    return json.dumps(header).encode() + b"\n" + program + stdin


def _failure(reason: str) -> dict[str, Any]:
    return {
        "verdict": "infrastructure", "limit": None, "exit_code": None, "cpu_s": 0.0, "wall_s": 0.0,
        "truncated": False, "reason": reason,
    }  # fmt: skip


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


def _oom_kills() -> bytes:
    """The kernel's count of processes that it killed for want of memory."""
    found = [line for line in Path("/proc/vmstat").read_bytes().splitlines() if line.startswith(b"oom_kill ")]
    return found[0] if found else b""


def _write(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def main(launcher: Launcher, folder: Path) -> None:
    """Serve on stdin and stdout, of which programs inherit nothing."""
    control, replies = private_streams()
    os.set_blocking(control, False)
    become_subreaper()
    try:
        Supervisor(launcher, folder, control, replies).serve()
    finally:
        remove(folder)
