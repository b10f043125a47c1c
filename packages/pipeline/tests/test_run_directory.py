"""The run directory keeps a second run out, and says what is damaged."""

import json
import subprocess
import sys

import pytest

from tailrace.pipeline.errors import RunDirectoryError
from tailrace.pipeline.run.directory import RunDirectory, write_json


def test_nothing_is_overwritten(tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(RunDirectoryError, match="expected a new directory"):
        RunDirectory.create(tmp_path, {})
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_two_runs_in_one_directory_are_one_too_many(tmp_path):
    root = tmp_path / "run"
    RunDirectory.create(root, {})
    code = (
        "import pathlib, sys; from tailrace.pipeline.run.directory import RunDirectory;"
        "RunDirectory.open(pathlib.Path(sys.argv[1])).lock()"
    )
    second = subprocess.run(
        [sys.executable, "-c", code, str(root)], capture_output=True, text=True, timeout=60, check=False
    )
    assert second.returncode != 0
    assert "a run under way here" in second.stderr
    assert RunDirectory.open(root).running()


def test_a_lock_ends_with_its_process(tmp_path):
    directory = RunDirectory.create(tmp_path / "run", {})
    directory.unlock()
    assert not directory.running()
    directory.lock()


@pytest.mark.parametrize("content", ["{", "[]", '{"format": 99, "run": {}}'])
def test_a_damaged_configuration_is_named(tmp_path, content):
    directory = RunDirectory.create(tmp_path / "run", {})
    directory.config.write_text(content)
    with pytest.raises(RunDirectoryError, match=r"config\.json"):
        RunDirectory.open(tmp_path / "run")


def test_a_reader_never_sees_half_a_file(tmp_path):
    path = tmp_path / "status.json"
    write_json(path, {"step": 1})
    write_json(path, {"step": 2})
    assert json.loads(path.read_text()) == {"step": 2}
    assert [p.name for p in tmp_path.iterdir()] == ["status.json"]
