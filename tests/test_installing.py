"""The wheels of a release in a fresh environment outside the repository: what docs/installing.md says is what happens."""

import json
import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "installing.md").read_text()
#: What the page's run leaves out here, for time: most of the warm start, and runs beside it.
SHORT = ("warm_start.steps=40", "evaluation.controls=false", "task.held_out_size=8")


def finished(words, folder, timeout_s):
    """A command that sees neither this environment nor the repository."""
    hidden = ("PYTHONPATH", "PYTHONSAFEPATH", "VIRTUAL_ENV")
    seen = {name: value for name, value in os.environ.items() if name not in hidden}
    done = subprocess.run(
        list(map(str, words)), cwd=folder, env=seen, capture_output=True, text=True, timeout=timeout_s
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


@pytest.mark.deep
@pytest.mark.timeout(2400)
def test_the_quick_start_runs_from_the_wheels_alone(environment_with, tmp_path):
    build, make, install, doctor, run = map(shlex.split, re.findall(r"^\$ (.*)$", PAGE, re.MULTILINE))
    assert (make[-1], install[0], doctor[0], run[0]) == (
        "tailrace",
        "tailrace/bin/pip",
        "tailrace/bin/tailrace",
        "tailrace/bin/tailrace",
    )
    # What others release comes first: where it cannot be had, nothing is said about the wheels.
    python = environment_with("torch", "transformers", "ray", "pandas")
    finished([*build[:-1], tmp_path / build[-1]], ROOT, 600)
    # uv in place of pip, since it has torch in its cache.
    finished(["uv", "pip", "install", "-q", "--python", python, *install[2:]], tmp_path, 900)

    empty = tmp_path / "empty"
    empty.mkdir()
    where = finished(
        [python, "-c", "import tailrace.laminar, tailrace.cli; print(tailrace.laminar.__file__)"], empty, 60
    )
    assert where.startswith(str(python.parents[1]))
    tailrace = python.with_name("tailrace")
    assert "laminar" in finished([tailrace, *doctor[1:]], empty, 120)
    settings = [word for setting in SHORT for word in ("--set", setting)]
    finished([tailrace, *run[1:], *settings], empty, 1200)
    (directory,) = (empty / "runs").iterdir()
    summary = json.loads((directory / "summary.json").read_text())
    assert (summary["steps"], summary["lost_trajectories"], summary["consumed_twice"]) == (3, 0, 0)
    assert "accuracy" in (directory / "report.html").read_text()
