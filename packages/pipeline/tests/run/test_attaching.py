"""Who may take the place of a run's controller, and what one that is replaced can still do: nothing."""

import errno
import fcntl
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from tailrace import contracts as c
from tailrace.pipeline.config.models import RunConfig
from tailrace.pipeline.errors import RunDirectoryError, RunWriteError
from tailrace.pipeline.run.directory import RunDirectory
from tailrace.pipeline.run.eventlog import HEADER, EventLog, read_log
from tailrace.pipeline.run.figures.metrics import read_metrics
from tailrace.pipeline.run.launching import attaching, launch
from tailrace.pipeline.run.launching.attaching import (
    SILENT_S,
    check_left,
    check_resumed,
    make_cluster,
    next_epoch,
    take_over,
    to_go_on,
)
from tailrace.processes import ProcessId
from tailrace.runtime.errors import RunFailedError, SupersededError
from tailrace.runtime.hosts.ray_cluster import CLAIM, Claim, RayCluster, Unclaimed, claimed_ago_s


@pytest.fixture
def directory(tmp_path):
    directory = RunDirectory.create(tmp_path / "run", RunConfig().model_dump(mode="json"))
    with EventLog(directory.events) as log:
        log.append(1.0, [c.Tick()], [])
    return directory


@pytest.fixture
def keeper():
    """A process that stands for the one that keeps the cluster."""
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as process:
        yield process
        process.kill()


def left(directory, keeper):
    """The members of a run live, and nobody has claimed it for a while."""
    cluster = RayCluster("tailrace-1", "127.0.0.1:1", "secret", 0.0, 60.0, "", vars_of(ProcessId.of(keeper.pid)))
    cluster.write(directory.root)
    (directory.root / CLAIM).touch()
    long_ago = time.time() - SILENT_S - 1
    os.utime(directory.root / CLAIM, (long_ago, long_ago))
    return cluster


def vars_of(process):
    return {"pid": process.pid, "started": process.started, "namespace": process.namespace}


def test_members_on_a_joined_cluster_know_the_longest_that_anybody_waits(directory):
    settings = {"executor": {"name": "ray", "ray_address": "10.0.0.1:6379"}, "deadlines": {"step_s": 7200}}
    assert make_cluster(RunConfig.model_validate(settings), directory).patience_s == 7200.0


def test_one_that_died_is_replaced(directory, keeper):
    cluster = left(directory, keeper)
    directory.unlock()
    assert take_over(RunDirectory.open(directory.root)) == cluster


def test_one_that_is_stopped_is_replaced_and_writes_no_instant_any_more(directory, keeper):
    left(directory, keeper)
    stopped = EventLog(directory.events)
    other = RunDirectory.open(directory.root)
    take_over(other)  # the lock is held by the one that is stopped
    with EventLog(other.events) as log:
        for act in (stopped.check, lambda: stopped.append(2.0, [c.Tick()], [])):
            with pytest.raises(SupersededError, match="has attached since"):
                act()
        log.append(3.0, [c.Attached(2)], [])
    assert [instant.now for instant in read_log(other.events)] == [1.0, 3.0]
    directory.unlock()
    assert other.running()
    stopped.close()


def test_one_that_stands_still_as_it_attaches_keeps_nobody_waiting_for_ever(directory, keeper, monkeypatch):
    left(directory, keeper)
    directory.unlock()
    monkeypatch.setattr(attaching, "ATTACHES_S", 0.2)
    handle = os.open(directory.root, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        with pytest.raises(RunDirectoryError, match="found another process that has attached for 0 s without an end"):
            take_over(RunDirectory.open(directory.root))
    finally:
        os.close(handle)
    take_over(RunDirectory.open(directory.root))


def test_one_that_works_is_not(directory, keeper):
    left(directory, keeper)
    claim = Claim(directory.root)
    try:
        with pytest.raises(
            RunDirectoryError, match=rf"found a controller at work \(process {os.getpid()}, heard 0 s ago\)"
        ):
            take_over(RunDirectory.open(directory.root))
    finally:
        claim.close()


def test_a_claim_lasts_as_long_as_its_process_renews_it(directory):
    assert claimed_ago_s(directory.root) == float("inf")
    claim = Claim(directory.root)
    path = directory.root / CLAIM
    os.utime(path, (1.0, 1.0))
    deadline = time.monotonic() + 60
    while claimed_ago_s(directory.root) > SILENT_S and time.monotonic() < deadline:
        time.sleep(0.01)
    assert claimed_ago_s(directory.root) < SILENT_S
    claim.close()
    path.unlink()
    claim.close()
    assert not path.exists()


def test_a_controller_whose_loop_stands_still_claims_its_run_no_longer(directory):
    claim = Claim(directory.root, stuck_s=0.1)
    path = directory.root / CLAIM

    def renewed(seconds):
        os.utime(path, (1.0, 1.0))
        end = time.monotonic() + seconds
        while path.stat().st_mtime == 1.0 and time.monotonic() < end:
            claim.tick(0.0, None) if ticks else time.sleep(0.01)
        return path.stat().st_mtime != 1.0

    try:
        ticks = True
        assert renewed(60)  # no loop runs yet
        with claim.looping():
            assert renewed(60)
            ticks = False
            time.sleep(1.2)  # a claim that was on its way
            assert not renewed(3)
            ticks = True
            assert renewed(60)
        ticks = False
        assert renewed(60)  # it is over
    finally:
        claim.close()


def test_a_claim_outlasts_a_file_system_that_fails_for_a_while(directory, monkeypatch):
    claim = Claim(directory.root)
    path, touch, failed = directory.root / CLAIM, Path.touch, threading.Event()

    def fails(self, *_, **__):
        monkeypatch.setattr(Path, "touch", touch)
        failed.set()
        raise OSError(errno.ESTALE, "Stale file handle")

    try:
        monkeypatch.setattr(Path, "touch", fails)
        assert failed.wait(30)
        os.utime(path, (1.0, 1.0))
        end = time.monotonic() + 30
        while path.stat().st_mtime == 1.0:
            assert time.monotonic() < end
            time.sleep(0.01)
    finally:
        claim.close()


def test_a_finished_run_has_no_controller_to_replace(directory, keeper):
    left(directory, keeper)
    directory.summary.write_text("{}")
    with pytest.raises(
        RunDirectoryError, match=r"found a finished run \(summary.json\), expected one whose controller died"
    ):
        take_over(directory)


@pytest.mark.parametrize("what", ["no cluster", "a cluster that is gone", "no log", "a log of no instant"])
def test_without_members_there_is_nothing_to_attach_to(directory, keeper, what):
    if what != "no cluster":
        left(directory, keeper)
    if what == "a cluster that is gone":
        keeper.kill()
        keeper.wait()
    if what == "no log":
        directory.events.unlink()
    if what == "a log of no instant":
        directory.events.write_bytes(HEADER)
    directory.unlock()
    with pytest.raises(RunDirectoryError, match=r"found no member of it that lives.*go on with: tailrace run --resume"):
        take_over(directory)


def test_each_controller_has_a_greater_epoch(directory):
    assert [next_epoch(directory), next_epoch(directory), next_epoch(RunDirectory.open(directory.root))] == [1, 2, 3]


def test_an_epoch_that_cannot_be_written_is_named(directory, monkeypatch):
    monkeypatch.setattr(os, "fsync", Mock(side_effect=OSError(errno.ENOSPC, "No space left on device")))
    with pytest.raises(RunWriteError, match=r"run/epoch: could not be written: No space left on device"):
        next_epoch(directory)
    assert not (directory.root / "epoch").exists()


def test_where_members_live_is_for_the_runs_user_only(directory, keeper):
    cluster = left(directory, keeper)
    assert (directory.root / "cluster.json").stat().st_mode & 0o777 == 0o600
    assert RayCluster.read(directory.root) == cluster


def test_a_cluster_ends_with_its_keeper(directory, keeper):
    left(directory, keeper).end()
    assert keeper.wait(30) != 0
    assert RayCluster.read(directory.root) is None


def test_a_copy_of_a_run_leaves_the_members_of_the_other_alone(directory, keeper):
    """A run is copied to go on from a checkpoint in another way, while it goes on itself."""
    cluster = left(directory, keeper)
    copy = RunDirectory.open(shutil.copytree(directory.root, directory.root.with_name("copy")))
    with pytest.raises(RunDirectoryError, match="found no member of it that lives"):
        check_left(copy)
    make_cluster(RunConfig.model_validate({"executor": {"ray_address": "auto"}}), copy)
    assert keeper.poll() is None
    assert RayCluster.read(directory.root) == cluster
    moved = directory.root.rename(directory.root.with_name("moved"))
    assert RayCluster.read(moved) == cluster


def test_a_clock_that_is_set_forward_ends_no_run(directory):
    path = directory.root / CLAIM
    path.touch()
    unclaimed = Unclaimed(directory.root)
    for ago_s in (3602.0, 3601.0):  # it was set forward since the last claim, and the next one is on its way
        at = time.time() - ago_s
        os.utime(path, (at, at))
        assert claimed_ago_s(directory.root) > 3600
        assert unclaimed.seconds() == 0.0
    until = time.monotonic() + 30
    while not (found := unclaimed.seconds()) and time.monotonic() < until:
        time.sleep(0.001)
    assert 0.0 < found < 30.0
    path.unlink()
    assert unclaimed.seconds() == float("inf")


@pytest.mark.parametrize("at", ["replay", "make_cluster"])
def test_a_controller_that_replays_its_log_or_waits_for_ray_is_not_replaced(directory, keeper, monkeypatch, at):
    class WaitedError(Exception):
        pass

    def waits(*_, **__):
        claim = directory.root / CLAIM
        with pytest.raises(RunDirectoryError, match="found a controller at work"):
            check_left(RunDirectory.open(directory.root))
        first, deadline = claim.stat().st_mtime_ns, time.monotonic() + 30
        while claim.stat().st_mtime_ns == first:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        raise WaitedError

    left(directory, keeper)
    monkeypatch.setattr(launch, "check", lambda _: None)
    monkeypatch.setattr(launch, "replay", lambda *_, **__: None)
    monkeypatch.setattr(launch, at, waits)
    with pytest.raises(WaitedError):
        launch.launch(RunConfig(), directory)


def test_what_ends_a_run_is_told_on_a_full_disk_too(directory, monkeypatch):
    def fails(_):
        shutil.rmtree(directory.root)  # nothing can be written there
        raise RunFailedError("the reason")

    monkeypatch.setattr(launch, "check", fails)
    with pytest.raises(RunFailedError, match=r"^the reason$"):
        launch.launch(RunConfig(), directory)


def test_a_finished_run_keeps_its_summary_until_its_changes_are_written(directory, monkeypatch):
    steps = directory.configuration().pipeline.steps
    directory.summary.write_text(json.dumps({"steps": steps}))
    directory.unlock()
    more = {"pipeline.steps": [steps, steps + 1]}
    config = RunConfig.model_validate({"pipeline": {"steps": steps + 1}})
    with monkeypatch.context() as patched:
        full = RunWriteError(errno.ENOSPC, "No space left on device", "config.json")
        patched.setattr("tailrace.pipeline.run.directory.write_json", Mock(side_effect=full))
        with pytest.raises(RunWriteError):
            launch.resume(directory, config=config, changed=more)
    assert directory.summary.exists()
    with pytest.raises(RunDirectoryError, match=rf"found a finished run .* more than its {steps}"):
        check_resumed(directory, {})
    directory.change(config.model_dump(mode="json"), more)  # and is killed
    check_resumed(directory, {})
    check_resumed(directory, {"pipeline.steps": [steps + 1, steps + 2]})
    with pytest.raises(RunDirectoryError, match=rf"found a finished run .* more than its {steps}"):
        check_resumed(directory, {"pipeline.steps": [steps + 1, steps]})


def test_a_run_whose_driver_died_before_it_decided_anything_begins_with_its_changes_and_faults(directory):
    """A full disk, or a policy that raises, leaves a log of no instant. It kept the old configuration for those to come."""
    directory.events.write_bytes(HEADER)
    config = RunConfig.model_validate({"pipeline": {"steps": 3}, "faults": ("trainer@step1",)})
    directory.change(config.model_dump(mode="json"), {"pipeline.steps": [60, 3]})
    assert directory.began_with() == config
    assert to_go_on(config, directory).faults == config.faults


def test_what_was_trained_on_has_as_long_to_be_written_as_a_checkpoint(directory):
    class WrittenError(Exception):
        pass

    def call(method, path, *, timeout_s):
        assert (method, path, timeout_s) == ("export", directory.trained, 4000.0)
        raise WrittenError

    host = SimpleNamespace(caller=lambda _: SimpleNamespace(call=call))
    config = RunConfig.model_validate({"deadlines": {"save_s": 4000}})
    with pytest.raises(WrittenError):
        launch._Launch(config, directory, None, None)._summary(
            None, [], SimpleNamespace(members={"data": None}, host=host), 1.0, None, []
        )


def test_a_run_that_cannot_begin_leaves_no_member(directory, monkeypatch):
    closed = []
    host = SimpleNamespace(close=lambda: closed.append("host"))
    trackers = SimpleNamespace(close=lambda *_, **__: closed.append("trackers"), log=lambda *_: None)
    monkeypatch.setattr(launch._Launch, "_host", lambda *_, **__: host)
    monkeypatch.setattr(launch._Launch, "_trackers", lambda _: (trackers, []))
    for name, found in {"check": None, "prepare": SimpleNamespace(model=None), "stops_in_words": []}.items():
        monkeypatch.setattr(launch, name, lambda *_, found=found, **__: found)
    view = SimpleNamespace(step_of=lambda version: version, evaluations=[])
    monkeypatch.setattr(launch, "replay", lambda *_, observe, **__: observe(2.0, [c.Stepped(1)], [], view))
    monkeypatch.setattr(launch, "build_deployment", lambda *_, **__: None)
    monkeypatch.setattr(launch, "Executor", Mock(side_effect=RunFailedError("no executor")))
    with pytest.raises(RunFailedError, match="no executor"):
        launch.launch(RunConfig(), directory)
    assert closed == ["trackers", "host"]
    written = [row["step"] for row in read_metrics(directory.metrics)]
    assert written == [1], "the driver before did not come to write it"
    directory.metrics.write_text("[]\n")
    with pytest.raises(RunDirectoryError, match=r"metrics\.jsonl, line 1"):
        launch.launch(RunConfig(), directory)
    assert closed == ["trackers", "host"]  # nothing had begun
