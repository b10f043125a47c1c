"""A child process that answers requests, a line of JSON each. It is killed if it misses a deadline."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import tempfile
from collections.abc import Mapping, Sequence
from typing import IO, Any

from tailrace.reward.errors import WorkerDiedError, WorkerTimeoutError

_READ_BYTES = 1 << 16
_SAID_BYTES = 1 << 16  # of what the child prints, this much is kept at most
_REAP_S = 30.0
_REPLY_BYTES = 1 << 26  # longest line of a reply
DEBUG = "TAILRACE_DEBUG"
"""Environment variable that shows on stderr what verifiers print."""


class WorkerProcess:
    """A child process that starts on its first request. One request at a time, all from one event loop.

    After `WorkerTimeoutError` or `WorkerDiedError`, or when a request is cancelled, the process is gone with everything that
    it started; the next request starts a fresh one. What it prints is not shown, but the last line of it stands in these
    errors.

    Args:
        command: the program and its arguments. It replies on stdout.
    """

    def __init__(self, command: Sequence[str]) -> None:
        self._command = list(command)
        self._process: asyncio.subprocess.Process | None = None
        self._said: IO[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """The process's id while it runs."""
        return None if self._process is None else self._process.pid

    async def ask(self, request: Mapping[str, Any], timeout_s: float | None, what: str) -> dict[str, Any]:
        """The reply to a request.

        Args:
            request: JSON values only.
            timeout_s: deadline of the reply; None: the caller has its own, and cancels.
            what: what is asked, for messages.

        Raises:
            WorkerTimeoutError: no reply within `timeout_s`; the process was killed.
            WorkerDiedError: the process ended before it replied.
            TypeError: the request has a value that JSON cannot carry.
        """
        line = json.dumps(request).encode() + b"\n"
        try:
            async with asyncio.timeout(timeout_s):
                process = await self._started()
                reply = await self._exchange(process, line)
        except TimeoutError:
            last = self._last_words()
            await self.stop()
            raise WorkerTimeoutError(
                f"{what} gave no result within {timeout_s or 0:g} s; the worker was killed and will be replaced{last}"
            ) from None
        except (OSError, EOFError, ValueError) as error:
            last = self._last_words()
            status = await self.stop()
            raise WorkerDiedError(
                f"the worker ended with status {status} in {what}; it will be replaced{last}", status
            ) from error
        except asyncio.CancelledError:
            await self.stop()
            raise
        if self._said is not None and os.fstat(self._said.fileno()).st_size > _SAID_BYTES:
            self._said.truncate(0)
        return reply

    async def stop(self) -> int | None:
        """Kill the process and what it started, and reap it. Returns its exit status, None if there was none.

        A process that a driver holds in the kernel ends when that lets it go; it is not waited for for long.
        """
        process, self._process = self._process, None
        said, self._said = self._said, None
        if said is not None:
            said.close()
        if process is None:
            return None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # a process that has ended by itself keeps its status
        if process.stdin is not None:
            process.stdin.close()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), _REAP_S)
        return process.returncode

    async def _started(self) -> asyncio.subprocess.Process:
        if self._process is None:
            self._said = None if os.environ.get(DEBUG) else tempfile.TemporaryFile("a+b")  # noqa: SIM115 - `stop` closes it
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=self._said,
                limit=_REPLY_BYTES,
                start_new_session=True,
            )
        return self._process

    @staticmethod
    async def _exchange(process: asyncio.subprocess.Process, line: bytes) -> dict[str, Any]:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(line)
        await process.stdin.drain()
        reply = await process.stdout.readline()
        if not reply.endswith(b"\n"):
            raise EOFError
        parsed: dict[str, Any] = json.loads(reply)
        return parsed

    def _last_words(self) -> str:
        if self._said is None:
            return ""
        said = self._said.fileno()
        printed = os.pread(said, _READ_BYTES, max(0, os.fstat(said).st_size - _READ_BYTES))
        lines = printed.decode(errors="replace").strip().splitlines()
        return f"; the last that it printed: {lines[-1].strip():.200}" if lines else ""
