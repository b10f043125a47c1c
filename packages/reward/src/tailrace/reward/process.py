"""A child process that answers requests, a line of JSON each. It is killed if it misses a deadline."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from typing import Any

from tailrace.processes.asynchronous import AsyncChild
from tailrace.processes.lines import encode
from tailrace.reward.errors import WorkerDiedError, WorkerTimeoutError

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
        self._command = command
        self._child: AsyncChild | None = None

    @property
    def pid(self) -> int | None:
        """The process's id while it runs."""
        return None if self._child is None or self._child.ended else self._child.pid

    async def ask(self, request: Mapping[str, Any], timeout_s: float | None, what: str) -> dict[str, Any]:
        """The reply to a request.

        Args:
            request: JSON values only.
            timeout_s: deadline of the reply; None: the caller has its own, and cancels.
            what: what is asked, for messages.

        Raises:
            WorkerTimeoutError: no reply within `timeout_s`; the process was killed.
            WorkerDiedError: the process ended before it replied.
            LineError, TypeError: the request is too long, or has a value that JSON cannot carry.
        """
        line = encode(request)
        try:
            async with asyncio.timeout(timeout_s):
                if self._child is None:
                    self._child = await AsyncChild.start(self._command, shown=bool(os.environ.get(DEBUG)))
                await self._child.send(line)
                return await self._child.receive()
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

    async def stop(self) -> int | None:
        """Kill the process and what it started, and reap it. Returns its exit status, None if there was none."""
        child, self._child = self._child, None
        if child is None:
            return None
        child.kill()
        return await child.reap()

    def _last_words(self) -> str:
        return "" if self._child is None else self._child.last_words()
