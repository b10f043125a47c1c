"""The workers of a pool: as many as there should be, each with its environment loaded, and who is given the next session.

A worker is told to load a registration of this interpreter, or the file of an adapter for another interpreter.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tailrace.contracts import PluginError, plugins
from tailrace.environment.errors import PoolClosedError, SetupError
from tailrace.environment.protocol import GROUP
from tailrace.environment.worker_link import WorkerGoneError, WorkerLink


def environment_names() -> list[str]:
    """The registered environments."""
    return plugins.names(GROUP)


def for_worker(environment: str, python: str) -> str:
    """How a worker finds the environment.

    Another interpreter need not have the package that registers an environment: it is handed the module's file, which may
    import the standard library and what that interpreter has. A name that is not registered here is looked up there.

    Args:
        environment: a registered name, ``module:Class`` or ``file.py:Class``.
        python: the worker's interpreter; empty: this one.

    Raises:
        SetupError: no environment has this name, or there is no such file.
    """
    source, colon, name = environment.rpartition(":")
    if colon:
        if source.endswith(".py"):
            if not Path(source).is_file():
                raise SetupError(f"found no file {source!r}, expected one with the environment {name}")
            return f"{Path(source).absolute()}:{name}"
        return environment
    if python and environment not in environment_names():
        return environment
    try:
        reference = plugins.reference(GROUP, environment)
    except PluginError as error:
        raise SetupError(str(error)) from error
    if not python:
        return reference
    module, _, name = reference.partition(":")
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        raise SetupError(
            f"found the environment {environment!r} in {module}, which has no file for another interpreter"
        )
    return f"{spec.origin}:{name}"


_FAILED_STARTS = 3  # in a row, after which a worker is started only when there is none left


@dataclass(frozen=True, slots=True)
class Abilities:
    """What an environment offers beside its three methods.

    Args:
        replayable: a new session with the same row and actions answers the same.
        restorable: a session can be restored from a snapshot.
        tokenized: it speaks in token ids instead of text.
        rows: it has rows of its own.
        reads_prompts: it is `tokenized`, and makes the model's prompt of the row's.
    """

    replayable: bool
    restorable: bool
    tokenized: bool = False
    rows: bool = False
    reads_prompts: bool = False


class Workers:
    """Keeps `count` workers. One that is gone is replaced at once; one with a call that does not end retires.

    Args:
        environment: a registered name, ``module:Class`` or ``file.py:Class``.
        options: options of each session.
        count: workers.
        python: their interpreter; empty: this one.
        start_s: deadline of a worker's start.
        silent_s: see `WorkerLink`.
    """

    def __init__(
        self, environment: str, options: Mapping[str, Any], count: int, python: str, start_s: float, silent_s: float
    ) -> None:
        try:
            json.dumps(dict(options))
        except (TypeError, ValueError) as error:
            raise SetupError(
                f"found options of the environment {environment!r} that are no JSON values: {error}"
            ) from None
        self._request = {
            "op": "load",
            "environment": for_worker(environment, python),
            "options": dict(options),
            "path": [] if python else sys.path,
        }
        self._name, self._count, self._python = environment, count, python
        self._start_s, self._silent_s = start_s, silent_s
        self.links: list[WorkerLink] = []
        """Links of the workers that may be given sessions."""
        self.abilities = Abilities(False, False)
        self.lost = 0
        """Workers that went without being asked to."""
        self._retiring: list[WorkerLink] = []
        self._starting: set[asyncio.Task[None]] = set()
        self._failed_starts = 0
        self._refused = ""
        self._open = False

    async def start(self) -> None:
        """Start all.

        Raises:
            SetupError: the environment cannot be had.
        """
        self._open = True
        try:
            outcomes = await asyncio.gather(*(self._start() for _ in range(self._count)), return_exceptions=True)
        except asyncio.CancelledError:
            await self.stop()
            raise
        failed = [outcome for outcome in outcomes if outcome is not None]
        if failed:
            await self.stop()
            raise failed[0]

    async def join(self) -> WorkerLink:
        """The worker with the fewest sessions, with one more.

        Raises:
            SetupError: there is none left, and a new one does not start.
            PoolClosedError: the workers were stopped.
        """
        while self._open:
            self._replace()
            if self.links:
                link = min(self.links, key=lambda each: each.sessions)
                link.sessions += 1
                return link
            last = not self._starting
            if last:
                self._start_beside()
            await asyncio.wait(self._starting, return_when=asyncio.FIRST_COMPLETED)
            if last and not self.links and self._open:
                raise SetupError(self._refused)
        raise PoolClosedError("found a closed pool of environments, expected an open one")

    async def leave(self, link: WorkerLink) -> None:
        """Say that a session is no longer there."""
        link.sessions -= 1
        if link in self._retiring and link.sessions == 0:
            self._retiring.remove(link)
            await link.stop()

    async def retire(self, link: WorkerLink) -> None:
        """Give a worker no more sessions, since a call there does not end, and stop it when its last other session is over.

        With more than `count` of them, the one that has retired for longest is stopped at once.
        """
        if link in self.links:
            self.links.remove(link)
            self._retiring.append(link)
            self._replace()
        if len(self._retiring) > self._count:
            await self._retiring.pop(0).stop()

    async def stop(self) -> None:
        """Stop all."""
        self._open = False
        for task in self._starting:
            task.cancel()
        await asyncio.gather(*self._starting, return_exceptions=True)
        links, self.links, self._retiring = [*self.links, *self._retiring], [], []
        await asyncio.gather(*(link.stop() for link in links))

    def _replace(self) -> None:
        while (
            self._open and self._failed_starts < _FAILED_STARTS and len(self.links) + len(self._starting) < self._count
        ):
            self._start_beside()

    def _start_beside(self) -> None:
        task = asyncio.create_task(self._try_to_start())
        self._starting.add(task)
        task.add_done_callback(self._starting.discard)

    async def _try_to_start(self) -> None:
        try:
            await self._start()
        except SetupError as error:  # who needs a worker and gets none is told
            self._failed_starts += 1
            self._refused = str(error)

    async def _start(self) -> None:
        link = WorkerLink(self._python, self._silent_s, self._ended)
        try:
            await link.start()
            reply = await link.ask(self._request, self._start_s)
        except WorkerGoneError:
            raise SetupError(
                f"found the environment {self._name!r}, whose worker does not start: {link.reason}"
            ) from None
        except TimeoutError:
            await link.stop()
            raise SetupError(
                f"found the environment {self._name!r}, which did not load within {self._start_s:g} s"
            ) from None
        except BaseException:
            await link.stop()
            raise
        if "error" in reply:
            await link.stop()
            raise SetupError(f"found the environment {self._name!r}, which cannot be had: {reply['error']}")
        if link.gone:  # since it replied
            raise SetupError(f"found the environment {self._name!r}, whose worker does not live: {link.reason}")
        self.abilities = Abilities(**{name: reply[name] for name in Abilities.__slots__})
        self._failed_starts = 0
        self.links.append(link)

    def _ended(self, link: WorkerLink) -> None:
        if link in self.links or link in self._retiring:
            self.lost += 1
            self.links = [each for each in self.links if each is not link]
            self._retiring = [each for each in self._retiring if each is not link]
            self._replace()


_SILENT_S = 10.0


def examine_environment(
    environment: str, options: Mapping[str, Any] | None = None, *, python: str = "", start_s: float = 60.0
) -> Abilities:
    """Start one worker, have it load the environment with these options, and end it. Not for a thread with an event loop.

    Args:
        environment: a registered name, ``module:Class`` or ``file.py:Class``.
        options: its options; JSON values.
        python: the interpreter; empty: this one.
        start_s: deadline.

    Raises:
        SetupError: the environment cannot be had; one line says why.
    """

    async def examine() -> Abilities:
        workers = Workers(environment, options or {}, 1, python, start_s, _SILENT_S)
        await workers.start()
        await workers.stop()
        return workers.abilities

    return asyncio.run(examine())
