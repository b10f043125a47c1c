"""A newcomer's path: the tutorial, command by command, as it is shown."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TUTORIAL = ROOT / "docs/tutorial.md"
PROGRAMS = {"tailrace": [sys.executable, "-m", "tailrace.cli.main"], "python": [sys.executable], "sed": ["sed"]}


def sections():
    """The tutorial's commands, by the number of the section that shows them."""
    found = {}
    for number, text in re.findall(r"^## (\d+)\. .*\n((?:(?!## ).*\n)*)", TUTORIAL.read_text(), re.MULTILINE):
        blocks = re.findall(r"^```console\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
        lines = [line.removeprefix("$ ") for block in blocks for line in block.splitlines()]
        found[int(number)] = [shlex.split(line, comments=True) for line in lines]
    return found


FIRST_RUN, OWN_TASK = (1, 2, 3), (4, 5, 6, 7)
"""Sections that need what those before them left. Each of the two begins with nothing, so they are walked apart."""


def test_the_quick_starts_two_commands_stand_in_the_readme():
    shown = re.findall(r"^```console\n\$ (.*)\n```$", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert shown == ["python3 -m pip install uv && uv run tailrace run laminar", "uv run pytest"]


def test_each_command_is_walked_and_its_program_known():
    found = sections()
    assert tuple(found) == FIRST_RUN + OWN_TASK
    assert sum(map(len, found.values())) == len(re.findall(r"^\$ ", TUTORIAL.read_text(), re.MULTILINE))
    assert {program for shown in found.values() for program, *_ in shown} == PROGRAMS.keys()


def walk(numbers, directory):
    """Runs the commands of sections as they are shown; returns what each said, by its first two words."""
    (directory / "configs").symlink_to(ROOT / "configs")
    said = {}
    for program, *words in (command for number in numbers for command in sections()[number]):
        done = subprocess.run(
            [*PROGRAMS[program], *words],
            cwd=directory,
            env=os.environ | {"COLUMNS": "200"},
            capture_output=True,
            text=True,
            timeout=1500,
        )
        assert done.returncode == 0, f"{program} {shlex.join(words)}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        assert "Traceback" not in done.stderr
        said[" ".join(words[:2])] = done.stdout
    return said


@pytest.mark.deep
@pytest.mark.long
@pytest.mark.timeout(3600)
def test_a_first_run_ends_rightly_and_can_be_looked_at(tmp_path):
    said = walk(FIRST_RUN, tmp_path)
    assert all(part in said["explain runs/first"] for part in ("routed to", "scored", "trained on"))
    assert json.loads((tmp_path / "runs/first/summary.json").read_text())["steps"] == 3
    assert (tmp_path / "runs/first/report.html").stat().st_size > 10_000


@pytest.mark.deep
@pytest.mark.long
@pytest.mark.timeout(3600)
def test_a_task_of_ones_own_is_trained_broken_gone_on_with_and_exported(tmp_path):
    walk(OWN_TASK, tmp_path)
    mine = json.loads((tmp_path / "runs/mine/summary.json").read_text())
    assert mine["steps"] == 12
    assert mine["lost_trajectories"] == mine["consumed_twice"] == 0
    assert mine["replica_restarts"] >= 1
    assert {"config.json", "tokenizer.json"} <= {path.name for path in (tmp_path / "my-model").iterdir()}
