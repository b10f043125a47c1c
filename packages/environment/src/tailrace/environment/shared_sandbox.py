"""One sandbox for all sessions of a process: its supervisors stay warm, and it runs programs in an event loop of its own."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tailrace.reward.sandbox import Limits, ProgramRun, Sandbox

_lock = threading.Lock()
_loop: asyncio.AbstractEventLoop | None = None
_sandboxes: dict[str, Sandbox] = {}


def run_program(sandbox: str, program: str, stdin: bytes, limits: Limits) -> ProgramRun:
    """Run a program and wait for its end.

    Args:
        sandbox: the sandbox's name, see `tailrace.reward.sandbox.select_sandbox`.
        program: its source.
        stdin: its input.
        limits: its limits.

    Raises:
        NoSandboxError: no sandbox works here.
        SandboxFailedError: the sandbox failed, which says nothing of the program.
    """
    from tailrace.reward.errors import SandboxFailedError
    from tailrace.reward.sandbox import RunVerdict

    found, loop = get_sandbox(sandbox)
    run = asyncio.run_coroutine_threadsafe(found.run(program, stdin=stdin, limits=limits), loop).result()
    if run.verdict is RunVerdict.INFRASTRUCTURE:
        raise SandboxFailedError(f"the sandbox {run.isolation!r} failed: {run.reason}")
    return run


def get_sandbox(name: str) -> tuple[Sandbox, asyncio.AbstractEventLoop]:
    """The process's sandbox of this name and the loop in which it runs; the first call takes half a second to probe it.

    Raises:
        NoSandboxError: no sandbox works here.
    """
    global _loop
    from tailrace.reward.sandbox import select_sandbox

    with _lock:
        if _loop is None:
            _loop = asyncio.new_event_loop()
            threading.Thread(target=_loop.run_forever, name="tailrace-sandbox", daemon=True).start()
        if name not in _sandboxes:
            _sandboxes[name] = select_sandbox(name)
        return _sandboxes[name], _loop
