"""The run directory keeps a second run out, says what is damaged, and a torn log line costs nothing."""

import json
import subprocess
import sys

import pytest

from tailrace import contracts as c
from tailrace.pipeline.errors import RunDirectoryError
from tailrace.pipeline.run.directory import RunDirectory, write_json
from tailrace.pipeline.run.eventlog import EventLog, read_events

EVENTS = [(0.0, c.Tick()), (0.5, c.Up("replica", "r0", answers=3)), (1.25, c.Stepped(1, {"loss": 0.5}, answers=9))]


def test_a_log_reads_as_it_was_written(tmp_path):
    with EventLog(tmp_path / "events.jsonl") as log:
        for now, event in EVENTS:
            log.append(now, event)
    assert list(read_events(tmp_path / "events.jsonl")) == EVENTS


def test_a_line_that_a_crash_cut_short_is_dropped_and_the_next_stands_on_its_own(tmp_path):
    path = tmp_path / "events.jsonl"
    with EventLog(path) as log:
        log.append(*EVENTS[0])
    with path.open("ab") as file:
        file.write(b'{"t":0.7,"is":"Up","ro')
    assert list(read_events(path)) == EVENTS[:1]
    with EventLog(path) as log:
        log.append(*EVENTS[1])
    assert list(read_events(path)) == EVENTS[:2]


def test_damage_in_the_middle_names_the_line(tmp_path):
    path = tmp_path / "events.jsonl"
    path.write_text('{"t":0.0,"is":"Tick"}\n{"t":1.0,"is":"Tock"}\n{"t":2.0,"is":"Tick"}\n')
    with pytest.raises(RunDirectoryError, match=r"line 2: .*Tock"):
        list(read_events(path))


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
