"""Programs by hidden tests, each in a real sandbox."""

import asyncio

import pytest

from tailrace.reward.code import CodeRowError, program_in, read_tests, run_tests
from tailrace.reward.code.compare import same_text, same_value
from tailrace.reward.sandbox import select_sandbox

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
def test_programs_that_use_up_a_limit_say_which(scored, program, limit):
    found = scored(program, timeout_s=0.3)
    assert not found.right
    if limit is not None:
        assert found.over_budget == limit
        assert found.over_time is limit.startswith(("cpu", "wall"))


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
    ],
)  # fmt: skip
def test_values_are_compared_as_json(written, expected, same):
    assert same_value(written, expected) is same


def test_texts_are_compared_but_for_white_space_at_ends():
    assert same_text("a \nb\n\n", "a\nb")
    assert not same_text(" a\nb", "a\nb")
    assert not same_text("a\n\nb", "a\nb")


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
    ],
)
def test_a_row_that_cannot_be_tested_says_why(metadata, says):
    with pytest.raises(CodeRowError) as raised:
        read_tests(metadata)
    assert says in str(raised.value)
    assert "\n" not in str(raised.value)


def test_tests_may_be_json_text_as_in_a_table_with_one_type_for_a_column():
    assert read_tests({"tests": '[{"args": [1, "a"], "expected": null}]', "entry_point": "f"}).inputs == ([1, "a"],)
