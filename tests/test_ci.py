"""What `.ci/run` says at its end."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LISTED, NEW = "packages/a/tests/test_a.py::test_listed", "packages/b/tests/test_b.py::test_new[1]"
UV = """#!/bin/bash
case "$*" in
  *--last-failed*) exit ${SECOND:-0} ;;
  "run pytest"*) mkdir -p .pytest_cache/v/cache
     echo '{"%s": true, "%s": true}' > .pytest_cache/v/cache/lastfailed; exit ${FIRST:-0} ;;
  "run python"*) shift 2; exec "$PYTHON" "$@" ;;
  "run tools/test-alone") echo "alone"; exit ${ALONE:-0} ;;
esac
"""


@pytest.mark.parametrize(
    ("codes", "status", "told"),
    [
        ({}, 0, False),
        ({"FIRST": "1"}, 0, True),
        ({"FIRST": "1", "ALONE": "1"}, 1, True),
        ({"FIRST": "1", "SECOND": "1"}, 1, False),
    ],
)
def test_its_last_lines_name_what_failed_first_and_passed_second(tmp_path, codes, status, told):
    (tmp_path / ".ci").mkdir()
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/flaky.md").write_text(f"| `{LISTED}` | today | a cause |\n")
    shutil.copy(ROOT / ".ci/run", tmp_path / ".ci/run")
    (tmp_path / "bin").mkdir()
    uv = tmp_path / "bin/uv"
    uv.write_text(UV % (LISTED, NEW))
    uv.chmod(0o700)
    path = f"{uv.parent}:{os.environ['PATH']}"
    done = subprocess.run(
        [tmp_path / ".ci/run"],
        env={**os.environ, **codes, "PATH": path, "PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == status, done
    last = ["failed first and passed second, see docs/flaky.md:", f"  listed      {LISTED}", f"  NOT LISTED  {NEW}"]
    assert (done.stdout.splitlines()[-3:] == last) == told, done.stdout
    assert (last[0] in done.stdout) == told
