"""Scores of programs by hidden tests: in a sandbox, with a timeout that adapts to right programs of the same prompt.

A sample of the programs that used up their timeout is tried again with the largest one, which shows false timeouts.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any

from tailrace.reward.code.rows import CodeTests, read_tests
from tailrace.reward.code.run import CodeRun, run_tests
from tailrace.reward.errors import ScoringError
from tailrace.reward.extraction import program_in
from tailrace.reward.items import TURNS, Recheck, ScoreItem, ScoringResult, said
from tailrace.reward.sandbox import Sandbox, select_sandbox
from tailrace.reward.settings import CodeSettings
from tailrace.reward.timeouts import AdaptiveTimeout, Anchors


class Rechecks:
    """One recheck at a time, of the latest candidate, as long as rechecks take no more than their share of the time.

    Args:
        share: seconds of rechecks for each second of scores.
        recheck: scores an item with the largest timeout.
    """

    def __init__(self, share: float, recheck: Callable[[ScoreItem], Awaitable[None]]) -> None:
        self._share, self._recheck = share, recheck
        self._scores_s = self._rechecks_s = 0.0
        self._task: asyncio.Task[None] | None = None

    @contextlib.contextmanager
    def measured(self) -> Iterator[None]:
        """Count the time of a score."""
        begun = time.monotonic()
        try:
            yield
        finally:
            self._scores_s += time.monotonic() - begun

    def over_time(self, item: ScoreItem) -> None:
        """Try a program again, unless another is being tried or rechecks have taken their share of the time."""
        if self._rechecks_s < self._share * self._scores_s and (self._task is None or self._task.done()):
            self._task = asyncio.create_task(self._again(item))

    async def close(self) -> None:
        """Stop the recheck that is under way."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def _again(self, item: ScoreItem) -> None:
        begun = time.monotonic()
        # A sandbox that fails shows in the scores; a sample more or less does not matter.
        with contextlib.suppress(ScoringError):
            await self._recheck(item)
        self._rechecks_s += time.monotonic() - begun


class CodeBackend:
    """Runs programs in a sandbox. Several scores may be under way at once.

    Args:
        sandbox: the sandbox; it is closed with this backend.
        settings: the pool's settings.
        rechecked: told of every program that was tried again with the largest timeout.
    """

    def __init__(self, sandbox: Sandbox, settings: CodeSettings, rechecked: Callable[[Recheck], None]) -> None:
        self._sandbox, self._settings, self._timeouts = sandbox, settings, settings.timeouts
        self._anchors = Anchors()
        self._rechecked = rechecked
        self._rechecks = Rechecks(settings.recheck_share, self._recheck)

    async def score(self, item: ScoreItem) -> ScoringResult:
        """1.0 if the program passes every test of its row, else 0.0.

        Raises:
            ScoringError: the row's tests are malformed, or the sandbox failed.
        """
        tests = read_tests(item.metadata, self._settings)
        timeout_s = self._timeouts.timeout_s(self._anchors.get(_prompt(item), tests.reference_time_s))
        with self._rechecks.measured():
            found = await self._run(item, tests, timeout_s)
        if found.over_time and timeout_s < self._timeouts.t_max_s:
            self._rechecks.over_time(item)
        return ScoringResult(item.trajectory, float(found.right), found.right, over_budget=found.over_budget)

    async def close(self) -> None:
        """Stop a recheck and close the sandbox."""
        await self._rechecks.close()
        await self._sandbox.close()

    async def _recheck(self, item: ScoreItem) -> None:
        found = await self._run(item, read_tests(item.metadata, self._settings), self._timeouts.t_max_s)
        self._rechecked(Recheck(item.trajectory, found.right))

    async def _run(self, item: ScoreItem, tests: CodeTests, timeout_s: float) -> CodeRun:
        program = program_in(said(item.response_text, item.metadata), tests.entry_point)
        found = await run_tests(self._sandbox, program, tests, timeout_s)
        if found.right:
            self._anchors.right(_prompt(item), found.slowest_s)
        return found


def _prompt(item: ScoreItem) -> int:
    """What tells an item's prompt from others: its text or, where that is not given, its row's columns."""
    if item.prompt_text:
        return hash(item.prompt_text)
    columns = {name: value for name, value in item.metadata.items() if name != TURNS}
    return hash(json.dumps(columns, sort_keys=True, default=str))


def code(response: str, answer: str, metadata: Mapping[str, Any]) -> float:  # noqa: ARG001 (the protocol passes it)
    """1.0 if the response's program passes every test, else 0.0. For a single call; a scheduler keeps its sandbox.

    Args:
        response: its program is found as in `program_in`.
        answer: the reference solution, which is not needed here.
        metadata: the tests, see `read_tests`.

    Raises:
        CodeRowError: the row's tests are missing or malformed.
        NoSandboxError: no sandbox works here, so nothing was run.
        SandboxFailedError: the sandbox failed.
    """
    tests = read_tests(metadata)
    program = program_in(said(response, metadata), tests.entry_point)

    async def judge() -> float:
        sandbox = select_sandbox()
        try:
            limit = AdaptiveTimeout().timeout_s(tests.reference_time_s)
            return float((await run_tests(sandbox, program, tests, limit)).right)
        finally:
            await sandbox.close()

    return asyncio.run(judge())
