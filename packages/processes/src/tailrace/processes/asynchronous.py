"""A child process that an event loop talks with, a line of JSON each way.

start ──► send, receive ──► kill ──► reap            What it prints on stderr goes to a file that is kept short; the last line
                   └──────► end: its input closes,    of it says why it ended.
                            then kill and reap
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import tempfile
from collections.abc import Mapping, Sequence
from typing import IO, Any

from tailrace.processes.child import REAP_S, SAID_BYTES, kill_group, last_line
from tailrace.processes.errors import ChildEndedError, LineError
from tailrace.processes.lines import LINE_BYTES, decode, encode

_TRIM_S = 1.0
_LONGEST_PAUSE_S = 0.05


class AsyncChild:
    """A child process that leads a process group of its own. Belongs to one event loop. Make one with `start`."""

    def __init__(self, process: asyncio.subprocess.Process, said: IO[bytes] | None, line_bytes: int) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._process, self._said, self._line_bytes = process, said, line_bytes
        self._stdin, self._stdout = process.stdin, process.stdout
        self._killed = False
        self._trimming: asyncio.TimerHandle | None = None
        self._trim()

    @classmethod
    async def start(
        cls,
        command: Sequence[str],
        *,
        shown: bool = False,
        line_bytes: int = LINE_BYTES,
        environment: Mapping[str, str] | None = None,
        folder: str | None = None,
    ) -> AsyncChild:
        """Start a process.

        Args:
            command: the program and its arguments. It reads requests from stdin and replies on stdout.
            shown: it prints on this process's stderr, instead of into a file that is kept short.
            line_bytes: the longest line of either side.
            environment: its environment variables; None: those of this process.
            folder: where it runs; None: here.

        Raises:
            OSError: there is no such program.
        """
        said = None if shown else tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - `kill` closes it
        if said is not None:  # whatever is cut off at its front, what comes next goes to its end
            fcntl.fcntl(said, fcntl.F_SETFL, os.O_RDWR | os.O_APPEND)
        starting = asyncio.ensure_future(
            asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=said,
                limit=line_bytes,
                env=environment,
                cwd=folder,
                start_new_session=True,
            )
        )
        try:
            # Who cancels does not cancel asyncio's start: that ends the process alone, and waits for ever for a pipe that it
            # connects afterwards, whose other end a child of the process holds.
            return cls(await asyncio.shield(starting), said, line_bytes)
        except asyncio.CancelledError:
            await asyncio.wait({starting}, timeout=REAP_S)
            if starting.done() and not starting.cancelled() and starting.exception() is None:
                child = cls(starting.result(), said, line_bytes)
                child.kill()
                await child.reap()
            elif said is not None:
                said.close()
            raise
        except BaseException:
            if said is not None:
                said.close()
            raise

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def status(self) -> int | None:
        """Its exit status, less than 0 if a signal ended it; None while it runs."""
        return self._process.returncode

    @property
    def ended(self) -> bool:
        """Whether it has ended, also where the event loop has not heard of that yet."""
        try:
            found = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            return found is not None or self.status is not None
        except ChildProcessError:  # it was reaped
            return True

    def tell(self, message: Mapping[str, Any] | bytes) -> None:
        """Send a message as a line of JSON, or bytes as they are, without waiting until it takes them.

        Raises:
            LineError, TypeError: see `lines.encode`.
        """
        self._stdin.write(message if isinstance(message, bytes) else encode(message, self._line_bytes))

    async def send(self, message: Mapping[str, Any] | bytes) -> None:
        """Send a message as `tell` does, and wait until it takes what was sent.

        Raises:
            ConnectionError: it takes no more.
            LineError, TypeError: see `lines.encode`.
        """
        self.tell(message)
        await self._stdin.drain()

    async def receive(self) -> dict[str, Any]:
        """The next message. The caller has the deadline.

        Raises:
            ChildEndedError: it closed its output.
            LineError: what it wrote is no object in JSON, or is too long.
        """
        try:
            line = await self._stdout.readline()
        except ValueError:
            raise LineError(f"found a line of more than {self._line_bytes:,} bytes") from None
        if not line.endswith(b"\n"):
            raise ChildEndedError("the process closed its output")
        return decode(line)

    async def read(self, count: int) -> bytes:
        """The next `count` bytes, which follow a message.

        Raises:
            EOFError: it closed its output before.
        """
        return await self._stdout.readexactly(count)

    def last_words(self) -> str:
        """The last line that it printed, as the end of a sentence; empty if there is none."""
        line = "" if self._said is None else last_line(self._said)
        return f"; the last that it printed: {line}" if line else ""

    def kill(self) -> None:
        """SIGKILL to it and its group. One that has ended keeps its status. Calling it again does nothing."""
        if self._killed:  # once it has ended, its number may be another's
            return
        self._killed = True
        kill_group(self.pid)
        self._stdin.close()
        if self._trimming is not None:
            self._trimming.cancel()
        if self._said is not None:
            self._said.close()
            self._said = None

    async def reap(self, timeout_s: float = REAP_S) -> int | None:
        """Its exit status, once it has ended; None after `timeout_s`: a driver may hold it in the kernel."""
        # Not `wait` of asyncio, which returns only once the pipes are closed too: a child of it may hold them open.
        loop, pause_s = asyncio.get_running_loop(), 0.001
        deadline = loop.time() + timeout_s
        while self.status is None and loop.time() < deadline:
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        # Not before: it would look itself how the process ended, and asyncio would not know.
        if self._killed and self.status is not None:
            self._process._transport.close()  # type: ignore[attr-defined]  # the pipes, whoever holds them besides
        return self.status

    async def end(self, grace_s: float) -> int | None:
        """Close its input, by which it is to end, and kill it if it has not after `grace_s`. Returns its exit status."""
        self._stdin.close()
        await self.reap(grace_s)
        self.kill()
        return await self.reap()

    def _trim(self) -> None:
        """Cut the file of what it printed to its last line once it is too long. Runs every second."""
        if self._said is None:
            return
        if os.fstat(self._said.fileno()).st_size > SAID_BYTES:
            line = last_line(self._said)
            self._said.truncate(0)
            self._said.write(line.encode() + b"\n")
        self._trimming = asyncio.get_running_loop().call_later(_TRIM_S, self._trim)
