"""One sandbox for all sessions of a process: its supervisors stay warm, and it runs programs in an event loop of its own."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tailrace.reward.sandbox import Limits, ProgramRun, Sandbox

_lock = threading.Lock()
_loop: asyncio.AbstractEventLoop | None = None
_sandboxes: dict[tuple[str, tuple[str, ...]], Sandbox] = {}


def run_program(sandbox: str, program: str, stdin: bytes, limits: Limits, modules: tuple[str, ...] = ()) -> ProgramRun:
    """Run a program and wait for its end.

    Args:
        sandbox: the sandbox's name, see `tailrace.reward.sandbox.select_sandbox`.
        program: its source.
        stdin: its input.
        limits: its limits.
        modules: installed modules that it may import.

    Raises:
        NoSandboxError: no sandbox works here.
        SandboxFailedError: the sandbox failed, which says nothing of the program.
    """
    from tailrace.reward.errors import SandboxFailedError
    from tailrace.reward.sandbox import RunVerdict

    found, loop = get_sandbox(sandbox, modules)
    run = asyncio.run_coroutine_threadsafe(found.run(program, stdin=stdin, limits=limits), loop).result()
    if run.verdict is RunVerdict.INFRASTRUCTURE:
        raise SandboxFailedError(f"the sandbox {run.isolation!r} failed: {run.reason}")
    return run


def get_sandbox(name: str, modules: tuple[str, ...] = ()) -> tuple[Sandbox, asyncio.AbstractEventLoop]:
    """The process's sandbox of this name with these modules, and the loop in which it runs; the first call probes it.

    Raises:
        NoSandboxError: no sandbox works here.
    """
    global _loop
    from tailrace.reward.sandbox import select_sandbox

    with _lock:
        if _loop is None:
            _loop = asyncio.new_event_loop()
            threading.Thread(target=_loop.run_forever, name="tailrace-sandbox", daemon=True).start()
        if (name, modules) not in _sandboxes:
            _sandboxes[name, modules] = select_sandbox(name, modules)
        return _sandboxes[name, modules], _loop
