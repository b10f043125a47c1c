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


def commands():
    blocks = re.findall(r"^```console\n(.*?)^```$", TUTORIAL.read_text(), re.MULTILINE | re.DOTALL)
    return [shlex.split(line.removeprefix("$ "), comments=True) for block in blocks for line in block.splitlines()]


def test_the_quick_starts_two_commands_stand_in_the_readme():
    shown = re.findall(r"^```console\n\$ (.*)\n```$", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert shown == ["python3 -m pip install uv && uv run tailrace run laminar", "uv run pytest"]


def test_the_tutorial_shows_programs_that_this_test_knows():
    assert len(commands()) > 10
    assert {program for program, *_ in commands()} <= PROGRAMS.keys()


@pytest.mark.deep
@pytest.mark.long
@pytest.mark.timeout(3600)
def test_each_command_ends_rightly_and_what_it_promises_is_there(tmp_path):
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    said = {}
    for program, *words in commands():
        done = subprocess.run(
            [*PROGRAMS[program], *words],
            cwd=tmp_path,
            env=os.environ | {"COLUMNS": "200"},
            capture_output=True,
            text=True,
            timeout=1500,
        )
        assert done.returncode == 0, f"{program} {shlex.join(words)}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        assert "Traceback" not in done.stderr
        said[" ".join(words[:2])] = done.stdout
    assert all(part in said["explain runs/first"] for part in ("routed to", "scored", "trained on"))
    first, mine = (json.loads((tmp_path / "runs" / name / "summary.json").read_text()) for name in ("first", "mine"))
    assert first["steps"] == 3
    assert (tmp_path / "runs/first/report.html").stat().st_size > 10_000
    assert mine["steps"] == 12
    assert mine["lost_trajectories"] == mine["consumed_twice"] == 0
    assert mine["replica_restarts"] >= 1
    assert {"config.json", "tokenizer.json"} <= {path.name for path in (tmp_path / "my-model").iterdir()}
