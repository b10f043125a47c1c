"""Verifier ``code``: a program that passes its row's hidden tests in a sandbox."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from tailrace.reward.code.rows import program_in, read_tests
from tailrace.reward.code.run import run_tests
from tailrace.reward.sandbox import select_sandbox
from tailrace.reward.timeouts import AdaptiveTimeout
from tailrace.reward.turns import said


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
