"""A child process from its owner's side: lines of JSON with a deadline, and an end that is sure.

start ──► send, receive, line ──► end: SIGTERM, then SIGKILL ──► reaped, pipes closed
                          └─────► kill: SIGKILL ─────────────┘

Invariant: no call waits past its deadline, whatever the child does. A process that a driver holds in the kernel does not end
before that lets it go; it is not waited for for more than `REAP_S`.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from typing import IO, Any

from tailrace.processes.errors import ChildEndedError, ChildTimeoutError, LineError
from tailrace.processes.lines import LINE_BYTES, decode, encode

REAP_S = 30.0
"""Seconds that a killed process is waited for."""
SAID_BYTES = 1 << 16
"""About so much is kept and looked at of what a child printed."""
_READ_BYTES = 1 << 16


class Child:
    """A child process. One thread at a time talks with it; any may look at it and end it.

    Args:
        command: the program and its arguments.
        stdin: ``subprocess.PIPE`` to talk with it; by default its input is empty.
        stdout: ``subprocess.PIPE`` to hear it, or a file; by default it prints where this process does.
        stderr: a file likewise.
        group: it leads a process group (and session) of its own, which ends with it in `end` and `kill`: with what it started
            there. Ctrl-C at a terminal does not reach it.
        environment: its environment variables; None: those of this process.
        pass_fds: descriptors that it inherits.

    Raises:
        OSError: there is no such program.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        stdin: int = subprocess.DEVNULL,
        stdout: int | IO[bytes] | None = None,
        stderr: int | IO[bytes] | None = None,
        group: bool = False,
        environment: Mapping[str, str] | None = None,
        pass_fds: Sequence[int] = (),
    ) -> None:
        self._process = subprocess.Popen(  # noqa: S603 - what to run is the caller's matter
            list(command), bufsize=0, stdin=stdin, stdout=stdout, stderr=stderr,
            start_new_session=group, env=environment, pass_fds=pass_fds,
        )  # fmt: skip
        self._group = group
        self._pending = bytearray()
        if self._process.stdin is not None:
            os.set_blocking(self._process.stdin.fileno(), False)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def poll(self) -> int | None:
        """Its exit status, less than 0 if a signal ended it; None while it runs."""
        return self._process.poll()

    def wait(self, timeout_s: float) -> int | None:
        """Wait until it ends, at most `timeout_s`. Returns what `poll` does."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(timeout_s)
        return None

    def send(self, message: Mapping[str, Any] | bytes, timeout_s: float) -> None:
        """Send a message as a line of JSON, or bytes as they are.

        Raises:
            ChildTimeoutError: it did not take all of it in time.
            ChildEndedError: it takes no more, or has no pipe as `stdin`.
            LineError, TypeError: see `lines.encode`.
        """
        stdin = self._open(self._process.stdin, "input")
        sending = memoryview(message if isinstance(message, bytes) else encode(message))
        deadline = time.monotonic() + timeout_s
        try:
            while sending:
                self._await(stdin, select.POLLOUT, deadline, timeout_s)
                sending = sending[os.write(stdin.fileno(), sending) :]
        except BrokenPipeError:
            raise ChildEndedError("the process takes no more input") from None

    def hang_up(self) -> None:
        """Close its input: it reads the end of it."""
        if self._process.stdin is not None:
            self._process.stdin.close()

    def receive(self, timeout_s: float, most_bytes: int = LINE_BYTES) -> dict[str, Any]:
        """The next message.

        Raises:
            ChildTimeoutError, ChildEndedError: see `line`.
            LineError: it is no object in JSON, or is longer than `most_bytes`.
        """
        return decode(self.line(timeout_s, most_bytes))

    def line(self, timeout_s: float, most_bytes: int = LINE_BYTES) -> bytes:
        """The next line of its output, its newline included.

        Raises:
            ChildTimeoutError: there is no whole line in time.
            ChildEndedError: it closed its output, was killed, or has no pipe as `stdout`.
            LineError: it is longer than `most_bytes`.
        """
        stdout = self._open(self._process.stdout, "output")
        deadline, searched = time.monotonic() + timeout_s, 0
        while not (end := self._pending.find(b"\n", searched) + 1):
            searched = len(self._pending)
            if searched >= most_bytes:
                break
            self._await(stdout, select.POLLIN, deadline, timeout_s)
            part = os.read(stdout.fileno(), _READ_BYTES)
            if not part:
                raise ChildEndedError("the process closed its output")
            self._pending += part
        if not end or end > most_bytes:
            raise LineError(f"found a line of more than {most_bytes:,} bytes")
        line = bytes(self._pending[:end])
        del self._pending[:end]
        return line

    def terminate(self) -> None:
        """SIGTERM to the process alone."""
        self._process.terminate()

    def end(self, *graces_s: float) -> int | None:
        """Ask it to end by SIGTERM, once for each of the waits, then kill it. Returns its exit status.

        Args:
            graces_s: how long to wait after each time.
        """
        for grace_s in graces_s:
            self._process.terminate()
            if self.wait(grace_s) is not None:
                break
        return self.kill()

    def kill(self, reap_s: float = REAP_S) -> int | None:
        """SIGKILL, also to its group if it has its own, and reap it. One that has ended keeps its status.

        Returns:
            Its exit status; None if it has not ended after `reap_s`.
        """
        if self._group:
            kill_group(self.pid)
            self._group = False  # once it has ended, its number may be another's
        self._process.kill()
        status = self.wait(reap_s)
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()
        return status

    @staticmethod
    def _open(stream: IO[bytes] | None, what: str) -> IO[bytes]:
        if stream is None:
            raise ChildEndedError(
                f"found no pipe for the {what} of the process, expected subprocess.PIPE as it was started"
            )
        if stream.closed:
            raise ChildEndedError(f"the {what} of the process is closed: it was killed, or hung up on")
        return stream

    @staticmethod
    def _await(stream: IO[bytes], event: int, deadline: float, timeout_s: float) -> None:
        waiting = select.poll()
        waiting.register(stream, event)
        if not waiting.poll(1000 * max(0.0, deadline - time.monotonic())):
            what = "gave no line" if event == select.POLLIN else "took no input"
            raise ChildTimeoutError(f"the process {what} within {timeout_s:.3g} s")


def kill_group(leader: int) -> None:
    """SIGKILL to all that is left of the group that a child leads or led."""
    with contextlib.suppress(ProcessLookupError, PermissionError):  # macOS forbids it where only zombies are left
        os.killpg(leader, signal.SIGKILL)


def last_line(said: IO[bytes]) -> str:
    """The last line that was printed into a file, at most 200 characters of it; empty if there is none."""
    size = os.fstat(said.fileno()).st_size
    printed = os.pread(said.fileno(), SAID_BYTES, max(0, size - SAID_BYTES))
    lines = printed.decode(errors="replace").strip().splitlines()
    return f"{lines[-1].strip():.200}" if lines else ""
