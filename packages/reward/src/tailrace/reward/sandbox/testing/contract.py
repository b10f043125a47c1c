"""What callers of a sandbox rely on: verdicts, limits, streams, cancelling."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tailrace.reward.sandbox.limits import Limits
from tailrace.reward.sandbox.protocol import ProgramRun, RunVerdict, Sandbox

_LIMITS = Limits(cpu_s=5, wall_s=20, memory_mib=256)
_TIGHT = Limits(cpu_s=0.5, wall_s=1.5, memory_mib=64, processes=8, output_kib=16, scratch_mib=2)
# name: (program, stdin, limits, what must hold)
_Case = tuple[str, bytes, Limits, Callable[[ProgramRun], bool]]


def _ends(verdict: RunVerdict, code: int | None, stdout: bytes | None = None) -> Callable[[ProgramRun], bool]:
    return lambda run: (run.verdict, run.exit_code) == (verdict, code) and stdout in (None, run.stdout)


def _over(*limits: str) -> Callable[[ProgramRun], bool]:
    return lambda run: run.verdict is RunVerdict.OVER_BUDGET and run.limit in limits


_LIBRARY = """
import asyncio, collections, ctypes, dataclasses, decimal, hashlib, heapq, itertools, json, re, subprocess, sys
async def main():
    await asyncio.sleep(0)
    print(hashlib.sha256(b"").hexdigest()[:4], flush=True)
asyncio.run(main())
subprocess.run([sys.executable, "-I", "-S", "-c", "print(1)"], check=True)
"""
_OK, _ERROR = RunVerdict.OK, RunVerdict.ERROR
_CASES: dict[str, _Case] = {
    "prints": ("print('6 x 7 =', 6 * 7)", b"", _LIMITS, _ends(_OK, 0, b"6 x 7 = 42\n")),
    "reads its input": ("print(sum(map(int, input().split())))", b"1 2 3\n", _LIMITS, _ends(_OK, 0, b"6\n")),
    "reads long input": ("import sys; print(len(sys.stdin.read()))", b"x" * 3_000_000, _LIMITS, _ends(_OK, 0, b"3000000\n")),
    "ignores its input": ("pass", b"x" * 3_000_000, _LIMITS, _ends(_OK, 0, b"")),
    "says its exit code": ("import sys; sys.exit(7)", b"", _LIMITS, _ends(_ERROR, 7)),
    "exits by name": ("print('a'); exit(0)", b"", _LIMITS, _ends(_OK, 0, b"a\n")),
    "raises": ("1 / 0", b"", _LIMITS, lambda run: run.verdict is _ERROR and b"ZeroDivisionError" in run.stderr),
    "is no Python": ("def (", b"", _LIMITS, lambda run: run.verdict is _ERROR and b"SyntaxError" in run.stderr),
    "is empty": ("", b"", _LIMITS, _ends(_OK, 0, b"")),
    "is any text": ("print('\N{SNOWMAN}', '\U0001f600')", b"", _LIMITS, _ends(_OK, 0, "\N{SNOWMAN} \U0001f600\n".encode())),
    "is no text": ("print('\ud800\x00')", b"", _LIMITS, lambda run: run.verdict is _ERROR),
    "dies of a signal": ("import os; os.kill(os.getpid(), 6)", b"", _LIMITS, _ends(_ERROR, 134)),
    "uses the standard library": (
        _LIBRARY,
        *(b"", _LIMITS, _ends(_OK, 0, b"e3b0\n1\n")),
    ),
    "has a main module": (
        "import pickle, sys\nclass A: pass\nif __name__ == '__main__': pickle.loads(pickle.dumps(A())); print(sys.argv)",
        *(b"", _LIMITS, _ends(_OK, 0, b"['program.py']\n")),
    ),
    "writes scratch files": (
        "import os\nopen('a', 'w').write('x'); os.mkdir('d'); os.rename('a', 'd/a'); print(open('d/a').read(), os.listdir())",
        *(b"", _LIMITS, _ends(_OK, 0, b"x ['d']\n")),
    ),
    "runs threads": (
        "from concurrent.futures import ThreadPoolExecutor as Pool\nwith Pool(8) as pool: print(sum(pool.map(abs, range(9))))",
        *(b"", _LIMITS, _ends(_OK, 0, b"36\n")),
    ),
    "has no environment": (
        "import os; print(set(os.environ) - {'PWD', 'LC_CTYPE', 'PATH', 'HOME', 'LANG'})",
        *(b"", _LIMITS, _ends(_OK, 0, b"set()\n")),
    ),
    "uses CPU": (
        "import time\nwhile time.process_time() < 0.3: pass",
        *(b"", _LIMITS, lambda run: run.verdict is _OK and 0.3 <= run.cpu_s < 0.8 and run.wall_s >= 0.3),
    ),
    "uses CPU in a child": (
        "import os, time\nif os.fork() == 0:\n    while time.process_time() < 0.3: pass\n    os._exit(0)\nos.wait()",
        *(b"", _LIMITS, lambda run: run.verdict is _OK and 0.3 <= run.cpu_s < 0.8),
    ),
    "sleeps": ("import time; time.sleep(60)", b"", _TIGHT, _over("wall")),
    "spins": ("while True: pass", b"", _TIGHT, _over("cpu", "wall")),
    "takes memory": ("held = []\nwhile True: held.append(b'x' * 4_000_000)", b"", _TIGHT, _over("memory")),
    "has processes": (
        "import os, time\nfor _ in range(20):\n    if os.fork() == 0: time.sleep(60)\ntime.sleep(60)",
        *(b"", _TIGHT, _over("processes")),
    ),
    "prints without end": (
        "while True: print('x' * 100)",
        *(b"", _TIGHT, lambda run: _over("output")(run) and run.truncated and len(run.stdout) == 16 << 10),
    ),
    "prints up to the limit": (
        "import sys; sys.stdout.write('x' * (16 << 10)); sys.stderr.write('y' * (16 << 10))",
        *(b"", _TIGHT, lambda run: run.verdict is _OK and not run.truncated and len(run.stderr) == 16 << 10),
    ),
}  # fmt: skip


async def check_sandbox(sandbox: Sandbox) -> None:
    """Check a sandbox on harmless programs: that verdicts are right, runs do not disturb each other, cancelling ends them.

    Raises:
        AssertionError: it breaks the contract; the message names each case.
    """
    runs = await asyncio.gather(*(sandbox.run(case[0], stdin=case[1], limits=case[2]) for case in _CASES.values()))
    wrong = [
        f"a program that {name}: {run}"
        for (name, case), run in zip(_CASES.items(), runs, strict=True)
        if not case[3](run)
    ]
    assert not wrong, "\n".join(wrong)
    assert all(run.isolation == sandbox.name for run in runs), "a run does not name its sandbox"
    await _check_cancelling(sandbox)


async def _check_cancelling(sandbox: Sandbox) -> None:
    for after_s in (0.0, 0.2):
        task = asyncio.create_task(sandbox.run("import time; time.sleep(60)", limits=_LIMITS))
        await asyncio.sleep(after_s)
        task.cancel()
        done, _ = await asyncio.wait([task], timeout=15)
        assert done, "a cancelled run does not end"
        assert task.cancelled(), f"a cancelled run ended with {task.result()}"
        run = await sandbox.run("print(1)", limits=_LIMITS)
        assert run.stdout == b"1\n", f"after a cancelled run the next one gave {run}"
