"""Runs a program's hidden tests in a sandbox."""

from __future__ import annotations

import binascii
import json
import marshal
from dataclasses import dataclass
from pathlib import Path

from tailrace.reward.code.compare import same_text, same_value
from tailrace.reward.code.rows import CodeTests
from tailrace.reward.errors import SandboxFailedError
from tailrace.reward.sandbox import DEFAULT_LIMITS, Limits, ProgramRun, RunVerdict, Sandbox
from tailrace.reward.sandbox.seccomp import PROTECTED, protecting_filters

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
