"""Programs by hidden tests, each in a real sandbox."""

import asyncio
import json
import signal

import pytest

from tailrace.reward import CodeSettings
from tailrace.reward.code import CodeRowError, SandboxFailedError, program_in, read_tests, run_tests
from tailrace.reward.code.compare import same_text, same_value
from tailrace.reward.sandbox import ProgramRun, RunVerdict, select_sandbox

DOUBLE = [{"args": [1], "expected": 2}, {"args": [5], "expected": 10}]


def call(*tests, **more):
    return {"entry_point": "f", "tests": list(tests) or DOUBLE, **more}


@pytest.fixture(scope="module")
def scored():
    with asyncio.Runner() as runner:
        sandbox = select_sandbox()

        def score(program, metadata=None, timeout_s=1.0):
            return runner.run(run_tests(sandbox, program, read_tests(metadata or call()), timeout_s))

        yield score
        runner.run(sandbox.close())


FORGER = """
import os
def f(x):
    for fd in range(64):
        try:
            os.write(fd, b'{"value": "2", "cpu_s": 0}\\n' * 9)
        except OSError:
            pass
    os._exit(0)
"""
HINTS = """
from __future__ import annotations
import dataclasses, typing
@dataclasses.dataclass
class P:
    x: int
def f(x):
    return P(2 * x).x if typing.get_type_hints(P)['x'] is int else None
"""
POOL = """
from concurrent.futures import ProcessPoolExecutor
def g(x):
    return 2 * x
def f(x):
    return list(ProcessPoolExecutor(2).map(g, [x]))[0]
"""
RIGHT = "def f(x):\n    return 2 * x\n"


@pytest.mark.parametrize(
    "program",
    [
        RIGHT,
        "f = lambda x: x + x",
        "print('noise')\nimport sys\nsys.stderr.write('noise')\n" + RIGHT,
        "from typing import List\ndef f(x: int) -> int:\n    return sum([x, x])\n",
        # Each test is alone.
        "n = 0\ndef f(x):\n    global n\n    n += 1\n    return 2 * x if n == 1 else None\n",
    ],
)
@pytest.mark.cases(4)
def test_right_programs_are_right(scored, program):
    found = scored(program)
    assert found.right
    assert found.over_budget == ""
    assert 0 < found.slowest_s < 1


@pytest.mark.parametrize(
    "program",
    [
        "",
        "def f(x):\n    return 2 * x +",
        "def g(x):\n    return 2 * x\n",
        "f = 3",
        "def f(x):\n    return x + 1\n",
        "def f(x):\n    return str(2 * x)\n",
        "def f(x):\n    return True if x == 1 else 10\n",
        "def f(x):\n    raise SystemExit(0)\n",
        "import os\ndef f(x):\n    os._exit(0)\n",
        "import os\nos._exit(0)",
        "import os, signal\ndef f(x):\n    os.kill(os.getppid(), signal.SIGKILL)\n    return 2 * x\n",
        "def f(x):\n    return f(x)\n",
        "def f(x):\n    return {1, 2}\n",
        "def f(x):\n    a = []\n    a.append(a)\n    return a\n",
        "class Same(int):\n    def __eq__(self, other):\n        return True\ndef f(x):\n    return Same(7)\n",
        # The harness's own line, on every descriptor that the program has.
        FORGER,
        "import builtins, json\njson.dumps = lambda value: '2'\nbuiltins.len = lambda _: 2\ndef f(x):\n    return x\n",
    ],
)
@pytest.mark.cases(6)
def test_wrong_programs_are_wrong_and_nothing_worse(scored, program):
    found = scored(program)
    assert not found.right
    assert found.over_budget == ""


@pytest.mark.parametrize(
    ("program", "limit"),
    [
        ("def f(x):\n    while True:\n        pass\n", "cpu 0.3 s"),
        ("import time\ndef f(x):\n    time.sleep(60)\n", "wall 1.3 s"),
        ("import signal\nsignal.setitimer(signal.ITIMER_PROF, 0)\nwhile True: pass", None),
        ("import os, time\ndef f(x):\n    os.closerange(3, 64)\n    time.sleep(60)\n", "wall 1.3 s"),
        ("def f(x):\n    return 'x' * 100_000\n", "output 64 KiB"),
        (
            "def f(x):\n    a = bytearray(1 << 30)\n    for i in range(0, len(a), 4096):\n        a[i] = 1\n    return 2 * x\n",
            None,
        ),
    ],
)
@pytest.mark.cases(4)
def test_programs_that_use_up_a_limit_say_which(scored, program, limit):
    found = scored(program, timeout_s=0.3)
    assert not found.right
    if limit is not None:
        assert found.over_budget == limit
        assert found.over_time is limit.startswith(("cpu", "wall"))


@pytest.mark.parametrize(
    ("entry_point", "program"),
    [
        ("f", "class Solution:\n    def f(self, x):\n        return 2 * x\n"),
        ("Solution.f", "class Solution:\n    def f(self, x):\n        return self.g(x)\n    def g(self, x): return 2 * x\n"),
        ("Solution.f", "class Solution:\n    @staticmethod\n    def f(x):\n        return 2 * x\n"),
        ("f", "def f(x):\n    return 2 * x\nclass Solution:\n    def f(self, x):\n        return 0\n"),
        ("f", "from dataclasses import dataclass\n@dataclass\nclass P:\n    x: int\ndef f(x):\n    return 2 * P(x).x\n"),
        ("f", HINTS),
        ("f", "def f(x: int):\n    return 2 * x if f.__annotations__['x'] is int else None\n"),
        ("f", "import pickle\nclass P:\n    n = 2\ndef f(x):\n    return x * pickle.loads(pickle.dumps(P())).n\n"),
        ("f", POOL),
        ("f", "import threading\ndef f(x):\n    threading.Thread(target=threading.Event().wait).start()\n    return 2 * x\n"),
        ("f", "import os, sys\ndef f(x):\n    os.write(2, b'x' * 300_000)\n    print('y' * 300_000)\n    return 2 * x\n"),
        ("f", "def f(x):\n    return 2 * x\nif __name__ == '__main__':\n    print(f(int(input())))\n"),
    ],
)  # fmt: skip
@pytest.mark.cases(4)
def test_functions_and_methods_are_called_as_python_has_them(scored, entry_point, program):
    assert scored(program, call() | {"entry_point": entry_point}, 5.0).right


@pytest.mark.parametrize("entry_point", ["Other.f", "Solution.g", "g"])
def test_a_method_that_is_not_there_is_wrong(scored, entry_point):
    program = "class Solution:\n    def f(self, x):\n        return 2 * x\n"
    assert not scored(program, call() | {"entry_point": entry_point}).right


@pytest.mark.parametrize(
    ("metadata", "program"),
    [
        ({"tests": [{"stdin": "60000\n", "stdout": " ".join(map(str, range(60000)))}] * 2}, "print(*range(int(input())))"),
        ({"tests": [{"stdin": "1 " * 6_000_000, "stdout": "6000000"}]}, "print(sum(map(int, input().split())))"),
        ({"tests": [{"stdin": "\u20ac" * 200_000, "stdout": "\u20ac" * 200_000}]}, "print(input())"),
        (call({"args": [list(range(300_000))], "expected": list(range(1, 300_001))}), "f = lambda x: [y + 1 for y in x]"),
        (call({"args": ["\u20ac"], "expected": "\u20ac" * 100_000}), "def f(x):\n    return x * 100_000"),
    ],
)  # fmt: skip
def test_inputs_and_outputs_are_as_large_as_the_tests(scored, metadata, program):
    found = scored(program, metadata, 20.0)
    assert (found.right, found.over_budget) == (True, "")


def test_a_limit_of_the_row_counts_and_is_said(scored):
    metadata = {"tests": [{"stdin": "", "stdout": "7"}], "limits": {"output_kib": 1}}
    assert scored("print(7)", metadata).right
    assert scored("print('7' * 2000)", metadata).over_budget == "output 1 KiB"


def test_an_output_that_comes_in_small_parts_has_the_same_limit(scored):
    """How the harness passes parts on is no matter of the program's: five bytes for each of one were over a tight limit."""
    slowly = "import time\nfor _ in range(8000):\n    print(end='7', flush=True)\n    time.sleep(0.0002)\n"
    found = scored(slowly, {"tests": [{"stdin": "", "stdout": "7" * 8000}], "limits": {"output_kib": 8}}, 10.0)
    assert (found.right, found.over_budget) == (True, "")


def test_an_output_may_be_far_larger_than_expected_before_it_is_over(scored):
    found = scored("print('7' * 60_000)", {"tests": [{"stdin": "", "stdout": "7"}]})
    assert (found.right, found.over_budget) == (False, "")


@pytest.mark.parametrize(("over", "said"), [("wall", "wall 21 s"), ("cpu", "cpu 2 s")])
def test_the_limit_that_is_told_is_the_one_that_was_met(over, said):
    """A sandbox that does not see that nothing works lets a test wait until its time on the clock is over."""

    class Patient:
        name = "patient"

        async def run(self, program, *, stdin, limits):
            told = b'{"tests": 1}\n' + json.dumps({"over": over, "cpu_s": 0.1}).encode() + b"\n"
            return ProgramRun(RunVerdict.OK, None, 0, told, b"", False, 0.1, 21.0, self.name)

    found = asyncio.run(run_tests(Patient(), "import time; time.sleep(60)", read_tests(call()), 2.0))
    assert (found.right, found.over_budget, found.over_time) == (False, said, True)


def test_what_goes_to_the_harness_and_comes_back_is_text():
    """A sandbox on a server takes and gives text alone."""
    passed = []

    class Textual:
        name = "textual"

        def __init__(self):
            self._sandbox = select_sandbox()

        async def run(self, program, *, stdin, limits):
            ended = await self._sandbox.run(program, stdin=stdin.decode("ascii").encode(), limits=limits)
            passed.append(ended.stdout.decode("ascii"))
            return ended

        async def close(self):
            await self._sandbox.close()

    async def score():
        sandbox = Textual()
        try:
            called, whole = (
                {"args": [-(10**9), "\u20ac"], "expected": "\u20ac"},
                {"stdin": "\u20ac", "stdout": "\u20ac"},
            )
            rows = [call(called), {"tests": [whole]}]
            programs = ["def f(x, y): return y", "print(input())"]
            return [await run_tests(sandbox, *each, 5.0) for each in zip(programs, map(read_tests, rows), strict=True)]
        finally:
            await sandbox.close()

    assert [run.right for run in asyncio.run(score())] == [True, True]
    assert len(passed) == 2


def test_the_harness_that_fails_is_no_zero(scored, monkeypatch):
    for broken in (
        "raise ImportError('no such module')",
        'import time\nprint(\'{"tests": 1}\\n{"failed": "no room"}\')',
    ):
        monkeypatch.setattr("tailrace.reward.code.scoring._HARNESS", broken)
        with pytest.raises(SandboxFailedError, match="harness of the tests"):
            scored(RIGHT)


ATTACKS = [
    "os.kill(harness, {n})",
    "os.kill(0, {n})",
    "os.killpg(os.getpgid(0), {n})",
    "os.kill(-1, {n})",
    "signal.pidfd_send_signal(os.pidfd_open(harness), {n})",
    "refused(libc.syscall(234 if x86 else 131, harness, harness, {n}))",
    "refused(libc.syscall(200 if x86 else 130, harness, {n}))",
    "refused(libc.syscall(129 if x86 else 138, harness, {n}, (ctypes.c_int * 32)({n}, 0, -1)))",
    "fcntl.fcntl(socket.socketpair()[0], fcntl.F_SETOWN, harness)",
    "fcntl.fcntl(socket.socketpair()[0], 15, struct.pack('ii', 1, harness))",
    "fcntl.ioctl(socket.socketpair()[0], 0x8901, struct.pack('i', harness))",
    "open('/proc/' + str(harness) + '/fd/4', 'w')",
    "open('/proc/' + str(harness) + '/mem', 'r')",
]
# One signal by each way, and each signal by one; the other pairs with --deep.
SIGNALS = [
    pytest.param(number, attack, marks=[pytest.mark.deep] * (number != signal.SIGKILL and attack != ATTACKS[0]))
    for number in (signal.SIGSTOP, signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
    for attack in ATTACKS
]


@pytest.mark.parametrize(("number", "attack"), SIGNALS)
def test_a_program_cannot_reach_the_harness(scored, attack, number):
    program = f"""
import ctypes, fcntl, os, platform, signal, socket, struct
libc, x86 = ctypes.CDLL(None, use_errno=True), platform.machine() == "x86_64"
harness = os.getppid()
def refused(result):
    if result == -1:
        raise OSError(ctypes.get_errno())
def reached():
    try:
        {attack.format(n=int(number))}
    except OSError:
        return False
    return True
def f(x):
    child = os.fork()
    if child == 0:
        os._exit(reached())
    return 2 * x if not reached() and os.waitpid(child, 0)[1] == 0 else "reached"
"""
    found = scored(program, timeout_s=5.0)
    assert (found.right, found.over_budget) == (True, "")


def test_a_stopped_test_holds_a_worker_no_longer_than_a_sleeping_one(scored):
    stopping = "import os, signal\ndef f(x):\n    os.kill(os.getpid(), signal.SIGSTOP)\n"
    trickling = "import time\ndef f(x):\n    while True:\n        time.sleep(0.2)\n"
    for program in (stopping, trickling):
        assert scored(program, timeout_s=0.3).over_budget == "wall 1.3 s"


def test_whole_programs_read_stdin_and_are_compared_by_their_output(scored):
    metadata = {"tests": [{"stdin": "3\n4\n", "stdout": "7\n"}, {"stdin": "1\n1\n", "stdout": "2"}]}
    assert scored("print(int(input()) + int(input()))", metadata).right
    assert scored(
        "import sys\nif __name__ == '__main__':\n    print(sum(map(int, sys.stdin)), ' ')\n    sys.exit()", metadata
    ).right
    assert not scored("print(7)", metadata).right
    assert not scored("import sys\nprint(sum(map(int, sys.stdin)))\nsys.exit(1)", metadata).right


def test_a_program_sees_no_expected_value(scored):
    spy = """
import gc, os, sys
def f(x):
    frame, seen = sys._getframe(), []
    while frame:
        seen += [repr(frame.f_locals), repr(frame.f_globals)]
        frame = frame.f_back
    seen += [repr(one) for one in gc.get_objects() if isinstance(one, (str, dict, list, tuple))]
    for folder, _, names in os.walk('.'):
        seen += [open(os.path.join(folder, name), errors='replace').read() for name in names]
    needle = 'locteuq'[::-1]
    return ('secret-' if x == 1 else 'known-') + (needle if any(needle in one for one in seen) else 'nothing')
"""
    assert not scored(spy, call({"args": [1], "expected": "secret-quetcol"})).right
    assert scored("y = 'quetcol'\n" + spy, call({"args": [2], "expected": "known-quetcol"})).right


@pytest.mark.parametrize(
    ("written", "expected", "same"),
    [
        ("1", 1, True), ("1.0", 1, True), ("true", 1, False), ("1", True, False), ("0.30000000000000004", 0.3, True),
        ("[1, [2]]", [1, [2]], True), ("[1]", [1, 2], False), ('{"a": 1.0}', {"a": 1}, True), ('{"a": 1}', {"b": 1}, False),
        ("NaN", float("nan"), False), ("1e400", 10**400, False), (str(10**400), 10**400, True), ("null", None, True),
        ("[" * 100_000, [], False), ("9" * 10_000, 1, False), ("no", "no", False),
        ("1e18", 10**18, True), ("1e18", 10**18 + 1, False), (str(10**18 + 1), 1e18, False), ("3.001", 3, False),
        ("9007199254740992.0", 2**53 + 1, False), ("2.9999999999999996", 3, True), ("0", 1e-12, False), ("0.0", 1e-12, False),
        ("2e-12", 1e-12, False), ("1e-12", 0.0, True), ("5.5e-17", 0, True), ("1e-6", 0.0, False),
        ("1e-12", 1.0000000001e-12, True), ("Infinity", 1e308, False),
    ],
)  # fmt: skip
def test_values_are_compared_as_json(written, expected, same):
    assert same_value(written, expected) is same


def test_texts_are_compared_but_for_white_space_at_ends():
    assert same_text("a \nb\n\n", "a\nb")
    assert not same_text(" a\nb", "a\nb")
    assert not same_text("a\n\nb", "a\nb")


@pytest.mark.parametrize(
    ("written", "expected", "same"),
    [
        ("0.3333333333333333", "0.333333333333", True), ("2.0", "2", True), ("2", "2.0", True), ("-0.0", "0", True),
        ("1e-05", "0.00001", True), ("1e+18", "1000000000000000000", True), ("1e+18", "1000000000000000001", False),
        ("9007199254740992.0", "9007199254740993", False), ("0", "0.000000000001", False), ("5.5e-17", "0", True),
        ("0.3333333333333333", "0.333333", True), ("0.3333334", "0.333333", True), ("0.3333336", "0.333333", False),
        ("0.3333", "0.333333", False), ("0.3333333333333333", "0.33", False), ("2.504", "2.50", False), ("2.5", "2.50", True),
        ("0.0000003", "0.000000", True), ("0.0000007", "0.000000", False), ("33.333333333333336", "33.3333", True),
        ("7", "007", False), ("7.5", "07.5", False), ("1.2.3", "1.2.30", False), ("100000", "1e5", False),
        ("v1.10", "v1.1", False),
        ("[0.5, 1.0] ok", "[0.50, 1] ok", True), ("0.5 0.1", "0.5 0.2", False), ("0.5", "0.5 0.5", False), ("nan", "nan", True),
        ("1" * 5000, "1" * 5000 + ".0", False), ("1e+999", "1", False), ("50.0%", "50%", True), ("3,5", "3.5", False),
        ("12345678901234567890", "12345678901234567891", False), ("1.0\n2.0", "1\n2", True), ("a 1.0", "b 1", False),
    ],
)  # fmt: skip
def test_numbers_in_outputs_are_equal_within_the_tolerance(written, expected, same):
    assert same_text(written, expected) is same


def test_the_tolerance_is_the_rows_else_that_of_the_settings_else_small(scored):
    row = {"tests": [{"stdin": "1 3\n", "stdout": "0.333333\n"}]}
    third, near = "a, b = map(int, input().split())\nprint(a / b)", "print(0.33334)"
    assert scored(third, row).right
    assert not scored(near, row).right
    assert scored(near, row | {"tolerance": 1e-4}).right
    assert not scored(third, row | {"tolerance": 0}).right
    loose = CodeSettings(tolerance=1e-4)
    assert read_tests(row, loose).tolerance == 1e-4
    assert read_tests(row | {"tolerance": 1e-6}, loose).tolerance == 1e-6
    assert read_tests(row).tolerance == 1e-9
    assert scored("def f(x):\n    return 2 * x + 0.001", call(tolerance=0.01)).right
    assert not scored("def f(x):\n    return 2 * x + 0.001").right


@pytest.mark.parametrize(
    ("response", "program"),
    [
        ("x = 1", "x = 1"),
        ("so:\n```python\nx = 1\n```\nor\n```\nx = 2\n```\ndone", "x = 2\n"),
        ("```python\nx = 1\n```\nthen ```", "x = 1\n"),
        ("<answer>x = 1</answer>", "x = 1"),
        ("```python\nx = 1", "```python\nx = 1"),
    ],
)
def test_the_program_of_a_response(response, program):
    assert program_in(response) == program


@pytest.mark.parametrize(
    ("response", "entry_point", "program"),
    [
 ("1. Do:\n   ```python\n   def f():\n       return 1\n   ```\n", "f", "def f():\n    return 1\n"),
 ("- ```python\n  x = 1\n  ```", None, "x = 1\n"),
 ("1. ```python\ndef f():\n    return 1\n```", "f", "def f():\n    return 1\n"),
 ("    ```python\n    x = 1\n    ```", None, "x = 1\n"),
 ("~~~python\nx = '```'\n~~~", None, "x = '```'\n"),
 ("````python\nx = '''\n```\n'''\n````", None, "x = '''\n```\n'''\n"),
 ("```python\nprint(3)\n```\nOutput:\n```\n7\n```", None, "print(3)\n"),
 ("```python\nprint(3)\n```\nOutput:\n```text\nprint(7)\n```", None, "print(3)\n"),
 ("```python\nprint(3)\n```\nOutput:\n```\nSum = 7\n```", None, "print(3)\n"),
 ("```python\nprint(f(int(input())))\n```\nUse:\n```python\nprint(f(3))  # 7\n```", None, "print(f(int(input())))\n"),
 ("```python\nprint(open(0).read())\n```\nUse:\n```\nprint(f(3))\n```", None, "print(open(0).read())\n"),
 ("```python\nprint(input())\n```\nno:\n```python\nprint(next(sys.stdin))\n```", None, "print(next(sys.stdin))\n"),
 ("```python\nprint(1)\n```\nno:\n```python\nprint(2)\n```", None, "print(2)\n"),
 ("```py\ndef f(x):\n    return 2\n```\nUse:\n```python\nprint(f(3))\n```", "f", "def f(x):\n    return 2\n"),
 ("```python\nclass S:\n    def f(self): pass\n```\n```python\ns = S()\n```", "S.f", "class S:\n    def f(self): pass\n"),
 ("```\nprint(1)\n```\n```bash\npython a.py\n```", None, "print(1)\n"),
 ('```python title="a.py"\nprint(1)\n```', None, "print(1)\n"),
 ("``` {.python .numberLines}\nprint(1)\n```", None, "print(1)\n"),
 ("```Python3\nprint(1)\n```\n", None, "print(1)\n"),
 ("> ```python\n> def f():\n>     return 1\n> ```\n", "f", "def f():\n    return 1\n"),
 ("````markdown\n```python\nprint(1)\n```\n````", None, "print(1)\n"),
 ("here: ```python\nprint(1)\n```\nand\n```\n1\n```", None, "print(1)\n"),
 ("```python\nprint(1)```", None, "print(1)"),
 ("<think>```python\nprint(0)\n```</think>\n```python\nx=1\n```", None, "x=1\n"),
 ("<think>```python\nprint(0)\n```</think>\nno", None, "print(0)\n"),
 ("```python\r\nprint(1)\r\n```\r\n", None, "print(1)\r\n"),
 ("```python\nprint(1)\n```\n```json\n{}\n```", None, "print(1)\n"),
 ("```text\nprint(1)\n```", None, "print(1)\n"),
 ("```python\ndef f(x): return 1\n```\nno:\n```python\ndef f(x): return 2\n```", "f", "def f(x): return 2\n"),
 ("```python\nprint(1)\n```\ntrunc:\n```python\nprint(2", None, "print(1)\n"),
 ("  ```python\n  if 1:\n      print(1)\n  ```", None, "if 1:\n    print(1)\n"),
 ("\t```python\n\tprint(1)\n\t```", None, "print(1)\n"),
 ("`````\n```\nprint(1)\n```\n`````", None, "print(1)\n"),
 ("```python\nf = lambda x: x\n```\n```\n4\n```", "f", "f = lambda x: x\n"),
 ("* step\n\n  * inner\n\n    ```python\n    print(1)\n    ```\n", None, "print(1)\n"),
 ("```python\nsys.stdout.write('7')\n```\nSample:\n```\nf(2) = 4\nresult: 7\n```", None, "sys.stdout.write('7')\n"),
 ("<answer>\n```python\nprint(1)\n```\n</answer>", None, "print(1)\n"),
 ("```python\nprint(1)\n    ```\nprint(2)\n```", None, "print(1)\n    ```\nprint(2)\n"),
 ("```python\nprint(1)\n   ```  \n", None, "print(1)\n"),
 ("~~~~ python\nprint(1)\n~~~\n~~~~", None, "print(1)\n~~~\n"),
    ],
)  # fmt: skip
def test_a_program_stands_wherever_markdown_may_put_it(response, entry_point, program):
    assert program_in(response, entry_point) == program


@pytest.mark.parametrize(
    ("metadata", "says"),
    [
        ({}, "found a row without tests (no keys)"),
        ({"tests": [], "other": 1}, "found a row without tests ('other', 'tests')"),
        ({"tests": [{"args": [1]}], "entry_point": "f"}, "as test 1, expected"),
        ({"tests": [{"args": 1, "expected": 1}], "entry_point": "f"}, "as test 1, expected"),
        ({"tests": [{"args": [1], "expected": 1}]}, "as test 1, expected"),
        ({"tests": DOUBLE, "entry_point": "f()"}, "found 'entry_point' = 'f()', expected the name of a function"),
        ({"tests": DOUBLE, "entry_point": "f", "reference_time_s": -1}, "expected seconds, at least 0"),
        ({"tests": DOUBLE, "entry_point": "f", "limits": {"memory_mib": 0.5}}, "expected a whole number above 0"),
        ({"tests": DOUBLE, "entry_point": "f", "limits": {"memory": 1}}, "found 'memory' in 'limits'"),
        ({"tests": "[{", "entry_point": "f"}, "found 'tests' that are no JSON"),
        ({"tests": DOUBLE, "entry_point": "Solution."}, "expected the name of a function, or Class.method"),
        ({"tests": DOUBLE, "entry_point": "class"}, "expected the name of a function, or Class.method"),
        (
            {"tests": DOUBLE, "entry_point": "f", "tolerance": "a"},
            "found 'tolerance' = 'a', expected an error, at least 0",
        ),
        (
            {"tests": DOUBLE, "entry_point": "f", "limits": {"memory_mib": 1}},
            "expected at least 16: Python itself takes as much",
        ),
        ({"tests": [{"stdin": "", "stdout": 7}]}, "found 'stdout' = 7 in test 1, expected text"),
        (
            {"tests": [{"stdin": "", "stdout": "7" * 3000}], "limits": {"output_kib": 2}},
            "found 3,000 bytes of 'stdout' in test 1",
        ),
        ({"tests": [{"stdin": "\ud800", "stdout": "7"}]}, "found 'stdin' in test 1 that no program can be given"),
        ({"tests": [{"stdin": "", "stdout": "\ud800"}]}, "found 'stdout' in test 1 that no program can be given"),
        (
            {"tests": [{"args": [], "expected": [float("nan")]}], "entry_point": "f"},
            "it equals nothing that a function can return",
        ),
        (
            {"tests": [{"args": [1], "expected": 2}, {"args": [1], "expected": 3}], "entry_point": "f"},
            "found tests 1 and 2 that give",
        ),
        (
            {"tests": [{"stdin": "1", "stdout": "a"}, {"stdin": "1", "stdout": "b"}]},
            "expected tests that a program can pass",
        ),
    ],
)
def test_a_row_that_cannot_be_tested_says_why(metadata, says):
    with pytest.raises(CodeRowError) as raised:
        read_tests(metadata)
    assert says in str(raised.value)
    assert "\n" not in str(raised.value)


def test_tests_may_be_json_text_as_in_a_table_with_one_type_for_a_column():
    assert read_tests({"tests": '[{"args": [1, "a"], "expected": null}]', "entry_point": "f"}).inputs == ([1, "a"],)
