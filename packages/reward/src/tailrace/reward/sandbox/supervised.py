"""A sandbox whose programs run below supervisor processes, one program at a time in each.

Consumes: calls of `run`. Waits for: a free supervisor, then its reply, with a deadline past the program's own.
Yields: a `ProgramRun` for each call. A supervisor that dies or does not answer is replaced, and its program's run is an
infrastructure failure; but for one that died while it waited for a program, which another one runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tailrace.processes import ChildEndedError
from tailrace.processes.asynchronous import AsyncChild
from tailrace.reward.errors import NoSandboxError
from tailrace.reward.sandbox.limits import DEFAULT_LIMITS, Limits
from tailrace.reward.sandbox.protocol import ProgramRun, RunVerdict
from tailrace.reward.sandbox.scratch import remove
from tailrace.reward.sandbox.supervisor import request

_GRACE_S = 20.0  # for starting a supervisor, and for killing and clearing away what a program left
_START = (
    "import sys; sys.path[:] = {path!r}; import importlib; from pathlib import Path;"
    " from tailrace.reward.sandbox.supervisor import main;"
    " main(getattr(importlib.import_module({module!r}), {name!r})({modules!r}), Path({folder!r}))"
)


class SupervisedSandbox:
    """Runs programs below warm supervisors, which start on demand.

    Args:
        name: the backend's name.
        launcher: ``module:class`` of the `Launcher` that the supervisors use.
        workers: programs at a time, as a number; by default, one for each CPU of this process.
        modules: paths of modules that programs may import besides the standard library, by their names; the launcher gets them.

    Raises:
        NoSandboxError: `workers` is no number above 0.
    """

    def __init__(self, name: str, launcher: str, workers: str = "", modules: Mapping[str, str] | None = None) -> None:
        if workers and not (workers.isdecimal() and int(workers) > 0):
            raise NoSandboxError(f"found {name}:{workers}, expected a number of programs at a time, such as {name}:8")
        self.name = name
        self._launcher, self._modules = launcher, dict(modules or {})
        self._free = asyncio.Semaphore(int(workers) if workers else len(os.sched_getaffinity(0)))
        self._idle: list[_Supervisor] = []
        self._busy: set[_Supervisor] = set()
        self._closed = False

    @property
    def pids(self) -> tuple[int, ...]:
        """Process ids of the supervisors."""
        return tuple(supervisor.pid for supervisor in (*self._idle, *self._busy))

    async def run(self, program: str, *, stdin: bytes = b"", limits: Limits = DEFAULT_LIMITS) -> ProgramRun:
        """See `Sandbox`. The wait for a free supervisor is not part of ``wall_s``.

        Raises:
            RuntimeError: the sandbox was closed.
        """
        if self._closed:
            raise RuntimeError("the sandbox is closed; make a new one")
        source = program.encode("utf-8", "surrogatepass")
        async with self._free:
            while True:
                supervisor, waited = None, bool(self._idle)
                try:
                    self._check_open()
                    supervisor = self._idle.pop() if waited else await _Supervisor.start(self._launcher, self._modules)
                    self._check_open()
                    self._busy.add(supervisor)
                    async with asyncio.timeout(limits.wall_s + _GRACE_S):
                        found = await supervisor.ask(request(source, stdin, limits), self.name)
                except (OSError, EOFError, TimeoutError, ValueError) as error:
                    if supervisor is not None:
                        await supervisor.stop()
                        late = self._closed or isinstance(error, TimeoutError)
                        if waited and not supervisor.began and not late:  # it ended before, and the program did not run
                            continue
                    return _failed(self.name, f"the sandbox's supervisor failed: {type(error).__name__}: {error}")
                except asyncio.CancelledError:
                    if supervisor is not None:
                        await asyncio.shield(supervisor.stop())
                    raise
                finally:
                    if supervisor is not None:
                        self._busy.discard(supervisor)
                await self._put_back(supervisor)
                return found

    def _check_open(self) -> None:
        if self._closed:  # while the program waited, or its supervisor started
            raise ChildEndedError("the sandbox was closed")

    async def _put_back(self, supervisor: _Supervisor) -> None:
        if self._closed:
            await supervisor.stop()
        else:
            self._idle.append(supervisor)

    async def close(self) -> None:
        """Kill what runs; those runs, and what waits, become infrastructure failures."""
        self._closed = True
        idle, self._idle = self._idle, []
        await asyncio.gather(*(supervisor.stop() for supervisor in (*idle, *self._busy)))


class _Supervisor:
    """One supervisor process and its folder."""

    def __init__(self, child: AsyncChild, folder: Path) -> None:
        self._child, self._folder = child, folder
        self._group: int | None = None

    @classmethod
    async def start(cls, launcher: str, modules: Mapping[str, str]) -> _Supervisor:
        folder = Path(tempfile.mkdtemp(prefix="tailrace-sandbox-"))
        module, _, name = launcher.partition(":")
        code = _START.format(path=sys.path, module=module, name=name, modules=modules, folder=str(folder))
        kept = {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH") if name in os.environ}
        command = [sys.executable, "-I", "-c", code]
        try:
            return cls(await AsyncChild.start(command, shown=True, environment=kept, folder="/"), folder)
        except BaseException:
            folder.rmdir()
            raise

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def began(self) -> bool:
        """Whether it has started a program that has not ended."""
        return self._group is not None

    async def ask(self, asked: bytes, isolation: str) -> ProgramRun:
        await self._child.send(asked)
        said: dict[str, Any] = {}
        while "verdict" not in said:
            said = await self._child.receive()
            self._group = said.get("group")
        stdout = await self._child.read(said.pop("stdout"))
        stderr = await self._child.read(said.pop("stderr"))
        said["verdict"] = RunVerdict(said["verdict"])
        return ProgramRun(**said, stdout=stdout, stderr=stderr, isolation=isolation)

    async def stop(self) -> None:
        """End it: it kills its program's tree itself, and is killed if it does not leave."""
        status = await self._child.end(_GRACE_S)
        if self._group is not None and status != 0:  # it died while a program ran, and could not end it
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._group, signal.SIGKILL)
        with contextlib.suppress(OSError):  # processes of the program may still be on their way out
            remove(self._folder)


def _failed(isolation: str, reason: str) -> ProgramRun:
    return ProgramRun(RunVerdict.INFRASTRUCTURE, None, None, b"", b"", False, 0.0, 0.0, isolation, reason)
