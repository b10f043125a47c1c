"""The event loop of a role that waits for many things at once, in a thread of its own.

executor's threads                                    the loop's thread
start ──► waits until it is up, or has failed ◄────── up() of `serve`
post, adopt ────────────────────────────────────────► the role's own functions
events ◄── EventQueue ◄────────────────────────────── put, and the error that broke `serve`
close ──► closing, and waits a while for the end ───► `serve` returns
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

from tailrace.contracts import Event
from tailrace.runtime.role_worker import EventQueue

Serve = Callable[[Callable[[], None]], Coroutine[Any, Any, None]]
_CLOSE_S = 10.0


class RoleLoop:
    """Runs a role's coroutine, and carries calls into its thread and events out of it.

    Args:
        name: of the thread.
        close_s: seconds that `close` and `adopt` wait for the loop.

    Attributes:
        queue: the events that the role tells.
        closing: set once the loop is to end; the role's coroutine then returns.
    """

    def __init__(self, name: str, *, close_s: float = _CLOSE_S) -> None:
        self.queue, self.closing = EventQueue(), asyncio.Event()
        self._name, self._close_s = name, close_s
        self._loop = asyncio.new_event_loop()
        self._thread: threading.Thread | None = None

    def start(self, serve: Serve) -> None:
        """Run `serve`, and return once it is up: it calls the function that it is given.

        What takes long before that has a deadline of its own.

        Raises:
            BaseException: what kept `serve` from coming up.
        """
        up = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(serve, up), name=self._name, daemon=True)
        self._thread.start()
        up.wait()
        self.queue.put(*self.queue.events(0.0))  # raises what broke it, and keeps what there is to tell

    def post(self, function: Callable[..., None], *arguments: Any) -> None:
        """Call a function in the loop's thread, soon. What it raises breaks the role; nothing if that is broken already."""
        with suppress(RuntimeError):  # the loop has ended; `events` raises why
            self._loop.call_soon_threadsafe(self._call, function, arguments)

    def task(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Begin something beside `serve`. What it raises breaks the role. Only the loop's thread calls it."""
        task = self._loop.create_task(work)
        task.add_done_callback(self._ended)
        return task

    def events(self, timeout_s: float) -> list[Event]:
        """Events since the last call; waits up to `timeout_s` seconds for the first.

        Raises:
            BaseException: what broke the role, once all earlier events have been taken.
        """
        return self.queue.events(timeout_s)

    def adopt(self, forget: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Have the role drop another controller's work, and drop what was not told of it.

        Raises:
            TimeoutError: the loop did not come to it within `close_s`.
        """

        async def dropped() -> None:
            await forget()
            self.queue.forget()

        asyncio.run_coroutine_threadsafe(dropped(), self._loop).result(self._close_s)

    def close(self) -> None:
        """Ask `serve` to end and wait for it, `close_s` at most; it may be called twice."""
        if self._thread is None:
            return
        with suppress(RuntimeError):  # the loop has ended by itself
            self._loop.call_soon_threadsafe(self.closing.set)
        self._thread.join(self._close_s)

    # ---- in the loop's thread -------------------------------------------------------------------------------------

    def _run(self, serve: Serve, up: threading.Event) -> None:
        try:
            with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
                runner.run(serve(up.set))
        except BaseException as error:
            self.queue.fail(error)  # `events` raises it
        finally:
            up.set()

    def _call(self, function: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        try:
            function(*arguments)
        except BaseException as error:
            self._fail(error)

    def _ended(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        self.queue.fail(error)
        self.closing.set()
