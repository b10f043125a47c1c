"""Runs a program's hidden tests in a sandbox."""

from __future__ import annotations

import json
import marshal
from dataclasses import dataclass
from pathlib import Path

from tailrace.reward.code.compare import same_text, same_value
from tailrace.reward.code.rows import CodeTests
from tailrace.reward.errors import SandboxFailedError
from tailrace.reward.sandbox import Limits, RunVerdict, Sandbox

_HARNESS = Path(__file__).with_name("harness.py").read_text(encoding="utf-8")
_REPLY_BYTES = 1 << 16  # of one test
_STARTING_CPU_S, _STARTING_WALL_S = 1.0, 5.0  # of the harness itself
_WALL = 10.0  # wall time of a test as a multiple of its CPU time: cores may be busy


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
        "inputs": tests.inputs,
        "cpu_s": timeout_s,
        "idle_s": timeout_s + 1,
        "wall_s": wall_s,
        "reply_bytes": _REPLY_BYTES,
    }
    limits = Limits(
        cpu_s=count * timeout_s + _STARTING_CPU_S,
        wall_s=count * wall_s + _STARTING_WALL_S,
        memory_mib=tests.memory_mib,
        output_kib=count * 6 * _REPLY_BYTES >> 10,  # JSON writes a byte in six at most
    )
    run = await sandbox.run(_HARNESS, stdin=marshal.dumps(asked), limits=limits)
    if run.verdict is RunVerdict.INFRASTRUCTURE:
        raise SandboxFailedError(f"the sandbox {run.isolation!r} failed: {run.reason}")
    if run.verdict is RunVerdict.OVER_BUDGET:
        size = {
            "cpu": f"cpu {limits.cpu_s:g} s",
            "wall": f"wall {limits.wall_s:g} s",
            "memory": f"memory {limits.memory_mib} MiB",
        }
        over = run.limit or "a limit"
        return CodeRun(False, size.get(over, over), over in ("cpu", "wall"))
    return _judged(run.stdout, run.cpu_s, tests, timeout_s)


def _judged(stdout: bytes, cpu_s: float, tests: CodeTests, timeout_s: float) -> CodeRun:
    """Compare the harness's lines. A program may have garbled them, which makes it wrong."""
    same = same_text if tests.entry_point is None else same_value
    slowest_s, right = 0.0, 0
    for line, expected in zip(stdout.decode("utf-8", "replace").splitlines(), tests.expected, strict=False):
        try:
            found = json.loads(line)
            over, value, seconds = found.get("over"), found.get("value"), float(found["cpu_s"])
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return CodeRun(False)
        if over in ("cpu", "wall"):
            return CodeRun(False, f"{over} {timeout_s + (over == 'wall'):g} s", over_time=True)
        if over is not None:
            return CodeRun(False, "output 64 KiB")
        if not isinstance(value, str) or not same(value, expected):
            return CodeRun(False)
        slowest_s, right = max(slowest_s, min(seconds, cpu_s)), right + 1
    return CodeRun(right == len(tests.expected), slowest_s=slowest_s)
