"""One worker process, from its owner's side: requests with deadlines, many at a time, and a look whether it still answers.

Consumes: requests. Waits for: its replies, in any order. Yields: each request's reply, or that the worker is gone.
A worker is gone when its process ended, when it wrote what is no reply, or when it answered no ping for `silent_s`: then it is
killed with everything in its process group.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

from tailrace.environment.errors import SetupError
from tailrace.environment.worker import LINE_BYTES
from tailrace.processes.asynchronous import AsyncChild
from tailrace.processes.lines import encode

DEBUG = "TAILRACE_DEBUG"
"""Environment variable that shows on stderr what environments print."""
_BEATS = 4  # looks in `silent_s`
_PROGRAM = (
    f"import runpy; runpy.run_path({os.path.join(os.path.dirname(__file__), 'worker.py')!r}, run_name='__main__')"  # noqa: PTH118, PTH120
)


class WorkerGoneError(Exception):
    """The worker ended before it replied. The pool decides what becomes of its sessions.

    Args:
        reason: in one line.
        calls: calls that were under way there, any of which may have ended it; 0 if this one had not begun.
    """

    def __init__(self, reason: str, calls: int = 0) -> None:
        super().__init__(reason)
        self.calls = calls


class WorkerLink:
    """A worker process. Belongs to one event loop.

    Args:
        python: the interpreter.
        silent_s: seconds without an answer to a ping after which the worker is killed.
        ended: called once when the worker is gone, whatever the reason.
    """

    def __init__(self, python: str, silent_s: float, ended: Callable[[WorkerLink], None]) -> None:
        self.sessions = 0
        """Sessions that live here, as the pool counts them."""
        self._python, self._silent_s, self._ended = python, silent_s, ended
        self._child: AsyncChild | None = None
        self._numbers = itertools.count()
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._heard = 0
        self._writable = False
        self._gone = asyncio.Event()
        self.reason = ""
        """Why the worker is gone, in one line; empty while it is not."""

    @property
    def pid(self) -> int:
        """Process id of the worker."""
        return self._running.pid

    @property
    def gone(self) -> bool:
        """Whether the worker can no longer be asked."""
        return bool(self.reason)

    @property
    def _running(self) -> AsyncChild:
        assert self._child is not None
        return self._child

    async def start(self) -> None:
        """Start the process.

        Raises:
            SetupError: there is no such interpreter.
        """
        command = (self._python or sys.executable, "-c", _PROGRAM)
        try:
            self._child = await AsyncChild.start(command, shown=bool(os.environ.get(DEBUG)), line_bytes=LINE_BYTES)
        except OSError as error:
            raise SetupError(
                f"found no Python interpreter {self._python!r} ({error.strerror}), expected a program"
            ) from error
        self._writable = True
        self._tasks = [asyncio.create_task(self._read()), asyncio.create_task(self._look())]

    async def ask(self, request: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
        """The reply to a request.

        Args:
            request: JSON values only.
            timeout_s: deadline of the reply.

        Raises:
            WorkerGoneError: the worker is gone, or went before it replied.
            TimeoutError: no reply in time; the worker may go on with it.
            ValueError: the request is too long.
            TypeError: it has a value that JSON cannot carry.
        """
        number = next(self._numbers)
        line = encode({**request, "id": number}, LINE_BYTES)
        if not self._writable:
            await self._gone.wait()  # it has ended, and its status is awaited, with a deadline
            raise WorkerGoneError(self.reason)
        reply: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._waiting[number] = reply
        try:
            async with asyncio.timeout(timeout_s):
                with contextlib.suppress(ConnectionError):  # it has ended, which its reader notices
                    await self._running.send(line)
                return await reply
        finally:
            self._waiting.pop(number, None)

    def tell(self, request: Mapping[str, Any]) -> None:
        """Send a request whose reply nobody waits for."""
        if self._writable:
            self._running.tell({**request, "id": next(self._numbers)})

    async def stop(self) -> None:
        """Kill the worker with everything in its process group, and reap it."""
        if self._child is None:
            return
        self._end("it was stopped")
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._child.reap()

    async def _read(self) -> None:
        while not self.reason:
            try:
                reply = await self._running.receive()
                waiting = self._waiting.get(reply["id"])
            except EOFError:
                self._writable = False
                ended = await self._running.reap() is not None
                return self._end(self._status() if ended else "it closed its output")
            except (ValueError, KeyError, TypeError):
                return self._end("it wrote something that is no reply")
            self._heard += 1
            if waiting is not None and not waiting.done():
                waiting.set_result(reply)
        return None

    async def _look(self) -> None:
        """Ping the worker. Its silence is counted in looks, so that an owner who stood still himself accuses nobody."""
        heard, silent = self._heard, 0
        while True:
            self.tell({"op": "ping"})
            await asyncio.sleep(self._silent_s / _BEATS)
            if self.reason:
                break
            if self._running.status is not None:  # a child of it may hold its output open
                return self._end(self._status())
            silent = silent + 1 if heard == self._heard else 0
            heard = self._heard
            if silent == _BEATS:
                return self._end(f"it answered nothing for {self._silent_s:g} s")
        return None

    def _status(self) -> str:
        return f"it ended with status {self._running.status}{self._running.last_words()}"

    def _end(self, reason: str) -> None:
        if self.reason:
            return
        self.reason, self._writable = reason, False
        self._gone.set()
        self._running.kill()
        under_way = [waiting for waiting in self._waiting.values() if not waiting.done()]
        for waiting in under_way:
            waiting.set_exception(WorkerGoneError(reason, len(under_way)))
        self._ended(self)
