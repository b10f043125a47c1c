"""The environment ``python``: programs run in the sandbox, variables stay, and its latencies come from the row."""

import asyncio
import time

import pytest

from tailrace.environment import EnvironmentPool, StepResult
from tailrace.environment.python_tool import PythonTool
from tailrace.environment.testing import check_environment
from tailrace.reward.sandbox import NoSandboxError, probe_sandbox
from tailrace.reward.sandbox.select import AUTOMATIC
from tailrace.reward.tasks.tool_sums import TOOL_SUMS

pytestmark = pytest.mark.skipif(
    not any(probe_sandbox(name).works for name in AUTOMATIC), reason="no sandbox works on this machine"
)


def block(code):
    return f"Let me see.\n```python\n{code}\n```"


def talk(*turns, row=None, **options):
    tool = PythonTool(**options)
    assert tool.reset(row or {}) == ""
    said = [tool.step(turn) for turn in turns]
    tool.close()
    return said


def texts(*turns, **options):
    return [each.observation for each in talk(*turns, **options)]


def test_a_block_is_answered_with_what_it_prints_and_its_variables_stay():
    assert texts(block("a = 6\nprint(a)"), block("print(a * 7)"), block("def f(): return a\nprint(f())")) == [
        "6\n",
        "42\n",
        "6\n",
    ]
    assert texts(block("print('once')\na = 1"), block("print(a)")) == ["once\n", "1\n"]
    assert texts(block("import os\nos.write(1, b'once ')"), block("print(2)")) == ["once ", "2\n"]
    assert texts("```json\n{}\n```\nor rather\n```Python3\nprint(1)\n```\nor\n```py\n  print(2)\n```") == ["2\n"]


def test_a_turn_without_a_block_is_the_end():
    first, last = talk(block("print(1)"), "<answer>1</answer>")
    assert (first.done, first.reward) == (False, 0.0)
    assert last == StepResult(done=True)
    assert [each.done for each in talk("```python\nprint(1)", "```bash\nls\n```\nwould do, or\n```json\n{}\n```")] == [
        True
    ] * 2
    assert [each.done for each in talk(*[block("print(1)")] * 3, most_calls=3)] == [False, False, True]


def test_errors_and_limits_are_told_and_do_not_end_the_session():
    programs = ["a = 5", "print(1)\n1 / 0", "a =", "print(a)", "import sys\nsys.exit(3)", "print(a)"]
    said = texts(*map(block, programs))
    assert said[1] == "1\nZeroDivisionError: division by zero\n"
    assert said[2].startswith("SyntaxError: invalid syntax")
    assert (said[0], said[3:]) == ("", ["5\n", "", "5\n"])
    (over,) = talk(block("print(1, flush=True)\nwhile True: pass"), cpu_s=0.3)
    assert over.observation == "1\nover its limit: cpu\n"
    assert over.metadata["verdict"] == "over-budget"
    (long,) = texts(block("print('x' * 3000)"), most_characters=100)
    assert long == "x" * 93 + "\n[cut]\n"


def test_programs_reach_nothing_of_the_host(tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("found")
    (said,) = texts(block(f"print(open({str(secret)!r}).read())"))
    assert "found" not in said.replace(str(secret), "")
    assert "Error" in said


def test_latencies_are_long_tailed_and_drawn_from_the_row():
    def latencies(row, **latency):
        tool = PythonTool(latency=latency)
        tool.reset(row)
        return [tool.latency_s(call) for call in range(2000)]

    given = {"median": 0.5, "sigma": 1.2, "cap": 20.0}
    first = latencies({"prompt": "a", "seed": 1}, **given)
    assert first == latencies({"prompt": "a", "seed": 1}, **given)
    assert first != latencies({"prompt": "a", "seed": 2}, **given)
    assert first != latencies({"prompt": "b", "seed": 1}, **given)
    drawn = sorted(first)
    assert drawn[1000] == pytest.approx(0.5, rel=0.15)
    assert drawn[1980] > 5 * drawn[1000]
    assert drawn[-1] <= 20.0
    assert set(latencies({}, median=0.5)) == {0.5}
    assert set(latencies({})) == {0.0}


def test_an_answer_takes_as_long_as_was_drawn():
    tool = PythonTool(latency={"median": 0.3})
    tool.reset({})
    begun = time.monotonic()
    assert tool.step(block("print(1)")).metadata["latency_s"] == 0.3
    assert time.monotonic() - begun >= 0.3


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"cpu_s": 0}, ValueError, "found cpu_s=0, expected a finite number above 0"),
        ({"most_calls": 0}, ValueError, "found most_calls = 0, expected a whole number above 0"),
        ({"latency": {"mean": 1}}, ValueError, "found latency.mean, expected one of median, sigma, cap"),
        ({"latency": {"median": -1}}, ValueError, "found latency.median = -1, expected a number, at least 0"),
        ({"sandbox": "nothing"}, NoSandboxError, "found the sandbox 'nothing', expected auto"),
    ],
)
def test_wrong_options_are_one_line(options, error, said):
    with pytest.raises(error) as found:
        PythonTool(**options)
    assert said in str(found.value)


def test_it_passes_the_contract_suite():
    check_environment(
        PythonTool,
        rows=[
            ({"prompt": "a"}, [block("x = 1\nprint(x)"), block("print(x + 1)"), "<answer>2</answer>"]),
            ({"prompt": "b"}, [block("print(x)"), block("x = 5"), block("print(x)")]),
        ],
        options={"wall_s": 10.0},
    )


def test_it_answers_as_the_demonstrations_of_its_task_say():
    rows = TOOL_SUMS.generate("train", 12, 1)

    async def play():
        async with EnvironmentPool("python", sessions=12) as pool:
            for row, transcript in zip(rows, TOOL_SUMS.transcripts(rows, 1), strict=True):
                session, first = await pool.open(row)
                assert first == ""
                for turn, observation in transcript.turns:
                    found = await pool.step(session, turn)
                    assert (found.observation, found.done) == (observation, turn == transcript.turns[-1][0])
                await pool.close(session)

    asyncio.run(play())
