"""`tools/mutants` plants what it draws: tests see it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.deep
def test_mutants_are_planted_and_killed(tmp_path):
    out = tmp_path / "mutants.jsonl"
    subprocess.run(
        [
            *(sys.executable, "tools/mutants", "packages/controller/src/tailrace/controller/fleet.py"),
            *("--tests", "packages/controller/tests/test_fleet.py", "--count", "5", "--fuzz", "0", "--out", str(out)),
        ],
        cwd=ROOT,
        check=True,
        timeout=300,
    )
    found = [json.loads(line)["by"] for line in out.read_text().splitlines()]
    assert len(found) == 5
    assert found.count("tests") >= 4
