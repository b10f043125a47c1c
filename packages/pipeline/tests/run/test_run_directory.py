"""The run directory keeps a second run out, and says what is damaged."""

import errno
import fcntl
import json
import os
import re
import resource
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tailrace.pipeline.errors import RunDirectoryError, RunWriteError
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
    with pytest.raises(RunDirectoryError, match="found a run, expected a new directory"):
        RunDirectory.create(root, {})
    assert RunDirectory.open(root).running()


def test_a_lock_ends_with_its_process(tmp_path):
    directory = RunDirectory.create(tmp_path / "run", {})
    directory.unlock()
    assert not directory.running()
    directory.lock()


def test_who_asks_whether_a_run_lives_is_not_taken_for_it(tmp_path, monkeypatch):
    """Two that look at a dead run at once, as `watch` and `status` do, and one that goes on with it in that instant."""
    directory = RunDirectory.create(tmp_path / "run", {})
    directory.unlock()
    asks = os.open(directory.root / "lock", os.O_RDONLY)
    fcntl.flock(asks, fcntl.LOCK_SH)  # what asking holds for an instant
    assert not directory.running()
    waited = []

    def sleep(seconds):
        waited.append(seconds)
        os.close(asks)

    monkeypatch.setattr("time.sleep", sleep)
    directory.lock()
    assert len(waited) == 1
    assert RunDirectory.open(directory.root).running()


def test_a_lock_that_another_replaces_meanwhile_counts_no_more(tmp_path, monkeypatch):
    """One opens the lock of a driver that died, another that attaches puts a new one in its place and holds it."""
    directory = RunDirectory.create(tmp_path / "run", {})
    directory.unlock()
    other, flock = RunDirectory(directory.root), fcntl.flock

    def overtaken(handle, how):
        monkeypatch.setattr(fcntl, "flock", flock)
        other.lock_anew()
        flock(handle, how)

    monkeypatch.setattr(fcntl, "flock", overtaken)
    with pytest.raises(RunDirectoryError, match=rf"found a run under way here \(process {os.getpid()}\)"):
        directory.lock()
    other.unlock()
    directory.lock()


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("{", "damaged"),
        ("[]", "found list, expected an object"),
        ('{"format": 99, "run": {}}', "found a run of format 99, expected a run of format 2"),
        ('{"run": {}}', "found a run of format None, expected"),
        ('{"format": 2, "run": 7}', "found a run of format 2, expected"),
        (
            '{"format": 1, "name": "x", "simulation": {}}',
            r"found something else \(format, name, simulation\), expected a run",
        ),
        (json.dumps({f"key{i}": i for i in range(40)}), r"found something else \(40 keys\)"),
    ],
)
def test_what_is_no_run_of_this_version_is_refused_in_one_line(tmp_path, content, says):
    directory = RunDirectory.create(tmp_path / "run", {})
    directory.config.write_text(content)
    with pytest.raises(RunDirectoryError, match=rf"config\.json: {says}") as error:
        RunDirectory.open(tmp_path / "run")
    assert "\n" not in str(error.value)


def test_what_cannot_be_read_is_named(tmp_path):
    (tmp_path / "config.json").mkdir()
    with pytest.raises(RunDirectoryError, match=r"config\.json: could not be read: Is a directory"):
        RunDirectory.open(tmp_path)


@pytest.mark.parametrize("step", range(9))
def test_a_run_that_could_not_be_made_leaves_nothing_behind(tmp_path, monkeypatch, step):
    """Each of the calls that make it meets a full disk in turn."""
    calls = iter(range(100))
    root = tmp_path / "runs" / "mine" / "first"

    def full(real):
        def call(*args, **options):
            if next(calls) == step:
                raise OSError(errno.ENOSPC, "No space left on device")
            return real(*args, **options)

        return call

    with monkeypatch.context() as patched:
        for owner, name in ((Path, "mkdir"), (fcntl, "flock"), (Path, "open"), (Path, "replace"), (os, "fsync")):
            patched.setattr(owner, name, full(getattr(owner, name)))
        with pytest.raises(
            RunDirectoryError, match=rf"{re.escape(str(root))}.*: could not be .*: No space left on device"
        ):
            RunDirectory.create(root, {})
    assert list(tmp_path.iterdir()) == []
    RunDirectory.create(root, {"seed": 1})
    assert RunDirectory.open(root).read_config() == {"seed": 1}


def test_a_run_that_another_made_since_the_directory_was_looked_at_stays(tmp_path, monkeypatch):
    """Its watcher lets go of the lock before its controller takes it."""
    root, lock = tmp_path / "run", RunDirectory.lock

    def late(self):
        monkeypatch.setattr(RunDirectory, "lock", lock)
        RunDirectory.create(root, {"seed": 1}).unlock()
        lock(self)

    monkeypatch.setattr(RunDirectory, "lock", late)
    with pytest.raises(RunDirectoryError, match="found a run, expected a new directory"):
        RunDirectory.create(root, {"seed": 2})
    assert RunDirectory.open(root).read_config() == {"seed": 1}
    assert not RunDirectory(root).running()


def test_an_empty_directory_that_was_there_stays(tmp_path):
    (tmp_path / "run").mkdir()
    with pytest.raises(TypeError, match="keys"):
        RunDirectory.create(tmp_path / "run", {("no", "key"): 1})
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    assert list((tmp_path / "run").iterdir()) == []


def test_below_a_file_no_run_is_made(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunDirectoryError, match=r"file/run: found the file .*/file on the way, expected directories"):
        RunDirectory.create(tmp_path / "file" / "run", {})


def test_a_file_that_cannot_be_written_stays_as_it_was(tmp_path):
    path = tmp_path / "status.json"
    write_json(path, {"step": 1})
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 12, before[1]))
    try:
        with pytest.raises(RunWriteError, match=r"status\.json: could not be written: File too large") as error:
            write_json(path, {"step": "2" * (1 << 13)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert error.value.filename == str(path)
    assert json.loads(path.read_text()) == {"step": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["status.json"]


def test_a_reader_never_sees_half_a_file(tmp_path):
    path = tmp_path / "status.json"
    write_json(path, {"step": 1})
    write_json(path, {"step": 2})
    assert json.loads(path.read_text()) == {"step": 2}
    assert [p.name for p in tmp_path.iterdir()] == ["status.json"]


def test_a_process_that_was_stopped_while_it_wrote_does_not_fail_for_another_that_wrote_meanwhile(
    tmp_path, monkeypatch
):
    path = tmp_path / "status.json"
    wakes, waker = os.pipe()
    wrote, writer = os.pipe()

    def stopped(handle):
        os.write(writer, b".")
        os.read(wakes, 1)

    child = os.fork()
    if child == 0:  # it stops before the file is in its place
        monkeypatch.setattr(os, "fsync", stopped)
        monkeypatch.setattr("tailrace.pipeline.run.directory._sync_entries", lambda parent: None)
        try:
            write_json(path, {"step": 1}, sync=True)
        except BaseException:
            os._exit(1)
        os._exit(0)
    os.read(wrote, 1)
    write_json(path, {"step": 2})
    assert json.loads(path.read_text()) == {"step": 2}
    os.write(waker, b".")
    assert os.waitpid(child, 0)[1] == 0
    assert [p.name for p in tmp_path.iterdir()] == ["status.json"]
    for handle in (wakes, waker, wrote, writer):
        os.close(handle)


@pytest.mark.parametrize("there", [False, True])
@pytest.mark.parametrize(
    ("config", "umask", "mode"),
    [
        ({}, 0o022, 0o700),
        ({"private": True}, 0o000, 0o700),
        ({"private": False}, 0o022, 0o755),
        ({"private": False}, 0o027, 0o750),
    ],
)
def test_prompts_and_responses_are_read_by_this_user_alone_unless_told_otherwise(tmp_path, there, config, umask, mode):
    root = tmp_path / "runs" / "one"
    before = os.umask(umask)
    try:
        if there:
            root.mkdir(parents=True)
        RunDirectory.create(root, config)
        assert stat.S_IMODE(root.stat().st_mode) == mode
        assert stat.S_IMODE(root.parent.stat().st_mode) == 0o777 & ~umask
    finally:
        os.umask(before)


def test_a_directory_that_cannot_be_made_private_is_refused(tmp_path, monkeypatch):
    def refuse(path, mode):
        raise PermissionError(errno.EPERM, "Operation not permitted", str(path))

    monkeypatch.setattr(Path, "chmod", refuse)
    with pytest.raises(RunDirectoryError, match=r"cannot be made private.*--set private=false"):
        RunDirectory.create(tmp_path / "run", {})
    assert list(tmp_path.iterdir()) == []
    assert RunDirectory.create(tmp_path / "run", {"private": False}).root.is_dir()
