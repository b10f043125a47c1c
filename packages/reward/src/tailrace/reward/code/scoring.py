"""Scores of programs by hidden tests: in a sandbox, with a timeout that adapts to right programs of the same prompt."""

from __future__ import annotations

import asyncio
import binascii
import contextlib
import json
import marshal
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tailrace.reward.code.compare import same_text, same_value
from tailrace.reward.code.rows import CodeTests, read_tests
from tailrace.reward.errors import SandboxFailedError, ScoringError
from tailrace.reward.extraction import program_in
from tailrace.reward.items import TURNS, Recheck, ScoreItem, ScoringResult, said
from tailrace.reward.sandbox import DEFAULT_LIMITS, Limits, ProgramRun, RunVerdict, Sandbox, select_sandbox
from tailrace.reward.sandbox.seccomp import PROTECTED, protecting_filters
from tailrace.reward.settings import CodeSettings
from tailrace.reward.timeouts import AdaptiveTimeout, Anchors

_HARNESS = Path(__file__).with_name("harness.py").read_text(encoding="utf-8")
_FILTERS = protecting_filters()
_STARTING_CPU_S, _STARTING_WALL_S = 1.0, 5.0  # of the harness itself
_BYTES_PER_S = 10e6  # what the harness passes on
_WALL = 10.0  # wall time of a test as a multiple of its CPU time: cores may be busy
_HARNESS_MIB = 32  # its memory and its files, which are not the program's
_SCRATCH_MIB = 16
_UNFLUSHED = 120  # Python's exit status where a stream could not be flushed at the end: what came of it is compared


@dataclass(frozen=True, slots=True)
class CodeRun:
    """What became of a program.

    Args:
        right: whether every test gave the expected value.
        over_budget: the limit that it used up, as in "cpu 2 s"; empty if none.
        over_time: whether that limit was its timeout.
        slowest_s: CPU seconds of its slowest test.
    """

    right: bool
    over_budget: str = ""
    over_time: bool = False
    slowest_s: float = 0.0


async def run_tests(sandbox: Sandbox, program: str, tests: CodeTests, timeout_s: float) -> CodeRun:
    """Run a program with the input of each test, and compare what it gives.

    Args:
        timeout_s: CPU seconds of each test. A test that waits for as long and a second more is over its time too.

    Raises:
        SandboxFailedError: the sandbox itself failed, so nothing is known of the program.
    """
    count, wall_s = len(tests.inputs), _WALL * timeout_s + 1
    asked = {
        "program": program,
        "entry_point": tests.entry_point,
        "count": count,
        "cpu_s": timeout_s,
        "wall_s": wall_s,
        "reply_bytes": tests.output_kib << 10,
        "filters": _FILTERS,
        "stands": PROTECTED,
    }
    whole = tests.entry_point is None
    given = [marshal.dumps(asked), *(each.encode() if whole else marshal.dumps(each) for each in tests.inputs)]
    stdin = b"".join(map(binascii.b2a_base64, given))
    output_kib = count * (2 * tests.output_kib + 4)  # base64, in lines of 48 KiB and more, and what the harness says
    passing_s = (len(stdin) + (output_kib << 10)) / _BYTES_PER_S
    input_mib = -(-tests.input_bytes >> 20)
    limits = Limits(
        cpu_s=count * timeout_s + _STARTING_CPU_S + passing_s,
        wall_s=count * wall_s + _STARTING_WALL_S + passing_s,
        memory_mib=tests.memory_mib + _HARNESS_MIB + 4 * input_mib,
        processes=DEFAULT_LIMITS.processes + 1,
        output_kib=output_kib,
        scratch_mib=_SCRATCH_MIB + 2 * input_mib,
        idle_s=timeout_s + 1,
    )
    run = await sandbox.run(_HARNESS, stdin=stdin, limits=limits)
    if run.verdict is RunVerdict.INFRASTRUCTURE:
        raise SandboxFailedError(f"the sandbox {run.isolation!r} failed: {run.reason}")
    if run.verdict is RunVerdict.OVER_BUDGET:
        size = {
            "cpu": f"cpu {limits.cpu_s:g} s",
            "wall": f"wall {limits.wall_s:g} s",
            "idle": f"wall {timeout_s + 1:g} s",
            "memory": f"memory {tests.memory_mib} MiB",
        }
        over = run.limit or "a limit"
        return CodeRun(False, size.get(over, over), over in ("cpu", "wall", "idle"))
    try:
        return _judged(run, tests, timeout_s)
    except (
        ValueError,
        TypeError,
        KeyError,
        AttributeError,
        RecursionError,
    ):  # the program has garbled what the harness says
        return CodeRun(False)


def _judged(run: ProgramRun, tests: CodeTests, timeout_s: float) -> CodeRun:
    """Compare what the harness wrote.

    Raises:
        SandboxFailedError: the harness failed.
    """
    slowest_s, right, parts = 0.0, 0, []
    begun, _, rest = run.stdout.partition(b"\n")
    if not begun.startswith(b'{"tests"'):
        said = (run.stderr.decode("utf-8", "replace").strip().splitlines() or ["it said nothing"])[-1]
        raise SandboxFailedError(f"the harness of the tests could not begin: {said:.200}")
    for line in rest.splitlines():
        if not line.startswith(b"{"):
            parts.append(line)
            continue
        found = json.loads(line)
        if "failed" in found:
            raise SandboxFailedError(f"the harness of the tests failed: {found['failed']:.200}")
        over, seconds = found.get("over"), float(found["cpu_s"])
        if over in ("cpu", "wall"):
            limit_s = timeout_s if over == "cpu" else _WALL * timeout_s + 1
            return CodeRun(False, f"{over} {limit_s:g} s", over_time=True)
        if over is not None:
            return CodeRun(False, f"output {tests.output_kib} KiB")
        value, parts = b"".join(map(binascii.a2b_base64, parts)).decode("utf-8", "replace"), []
        if not _passed(value, found["status"], tests, right):
            return CodeRun(False)
        slowest_s, right = max(slowest_s, min(seconds, run.cpu_s)), right + 1
    return CodeRun(right == len(tests.expected), slowest_s=slowest_s)


def _passed(value: str, status: int, tests: CodeTests, test: int) -> bool:
    if tests.entry_point is not None:
        return status == 0 and same_value(value, tests.expected[test], tests.tolerance)
    return status in (0, _UNFLUSHED) and same_text(value, tests.expected[test], tests.tolerance)


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
