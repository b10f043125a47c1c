"""What the page about sandboxes shows, runs, and its table is the table of hostile programs."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tailrace.reward.sandbox import AUTOMATIC, probe_sandbox
from tailrace.reward.sandbox.testing import HOSTILE

PAGE = Path(__file__).parents[3] / "docs" / "rewards.md"


@pytest.mark.deep
def test_the_example_runs_and_is_short(capsys):
    if not any(probe_sandbox(name).works for name in AUTOMATIC):
        pytest.skip("no sandbox works here")
    section = PAGE.read_text("utf-8").split("\n## Sandboxes: ")[1].split("\n## ")[0]
    (example,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    assert len(example.splitlines()) < 40
    exec(compile(example, "rewards.md", "exec"), {"__name__": "page"})
    right, endless, curious = capsys.readouterr().out.splitlines()
    assert right == "ok None 0 b'42\\n'"
    assert endless.startswith("over-budget")
    assert curious == "error None 1 b''"


def test_the_table_lists_every_hostile_program():
    section = PAGE.read_text("utf-8").split("### What is stopped")[1].split("\nHow:")[0]
    rows = [line.split("|")[2] for line in section.splitlines() if line.startswith("| ") and "`" in line]
    listed = [name for row in rows for name in re.findall(r"`([\w-]+)`", row)]
    assert sorted(listed) == sorted(HOSTILE)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], "found no sandbox, expected one of"),
        (["bubblewarp"], "bubblewarp: found the sandbox 'bubblewarp', expected auto, "),
        (["nowhere:make"], "nowhere:make: No module named 'nowhere'"),
        (["sandlock", "fork-bombs"], "found the programs fork-bombs, expected some of fork-bomb, "),
    ],
)
def test_a_wrong_command_line_of_the_suite_is_one_line(arguments, expected):
    command = [sys.executable, "-m", "tailrace.reward.sandbox.testing", *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 1
    assert ended.stderr.startswith(expected)
    assert ended.stderr.count("\n") == 1
