"""What a crash leaves is listed, asked about and removed; what something alive uses is not touched."""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from tailrace.cli.main import main
from tailrace.cli.runs.clean import size
from tailrace.paramserver import RelayProcess, left_segments
from tailrace.paramserver.machine.segments import living_owner
from tailrace.pipeline.config.models import RunConfig
from tailrace.pipeline.run.directory import RunDirectory
from tailrace.rollout.own_directory import ADAPTER, WEIGHTS, OwnDirectory
from tailrace.runtime.hosts import ray_session

pytestmark = pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="this system does not list shared memory")

OWNER = """
import sys, time
from tailrace.paramserver.machine.segments import SegmentOwner
owner = SegmentOwner(sys.argv[1])
owner.create(0, 50_000)
print("ready", flush=True)
time.sleep(120)
"""


@pytest.fixture
def owner(monkeypatch):
    """Starts a process that has shared memory as a relay has it. Returns it and its relay's name.

    Only such memory is looked at: tests beside this one have their own leftovers.
    """
    started = []
    monkeypatch.setattr(
        "tailrace.cli.runs.clean.left_segments",
        lambda: [left for left in left_segments() if f"relay clean-{os.getpid()}-" in left.owner],
    )

    def start(name):
        relay = f"clean-{os.getpid()}-{time.monotonic_ns()}-{name}"
        process = subprocess.Popen([sys.executable, "-c", OWNER, relay], stdout=subprocess.PIPE, text=True)
        started.append((process, relay))
        assert process.stdout.readline() == "ready\n"
        return process, relay

    yield start
    for process, relay in started:
        process.kill()
        process.communicate()
        RelayProcess.clear(relay)


@pytest.fixture
def sessions(tmp_path, monkeypatch):
    """Makes the folders of clusters, of a driver that lives or not."""
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    monkeypatch.setattr(ray_session, "_SHORT", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # only services there are looked at

    def make(name, *, alive, ours=True):
        folder = ray_session.make() if ours else tmp_path / name
        logs = folder / "r" / name / "logs"
        logs.mkdir(parents=True)
        (logs / "raylet.out").write_text("x" * 2000)
        if ours and not alive:
            found = json.loads((folder / ray_session.OWNER).read_text())
            (folder / ray_session.OWNER).write_text(json.dumps({**found, "started": 1}))
        return folder

    return make


def test_what_a_killed_process_left_goes_and_what_a_living_one_has_stays(owner, sessions, tmp_path, capsys):
    (dead, dead_relay), (_, living_relay) = owner("dead"), owner("living")
    dead.kill()
    dead.wait()
    gone, used, foreign = (
        sessions("session_1", alive=False),
        sessions("session_2", alive=True),
        sessions("session_3", alive=False, ours=False),
    )
    (tmp_path / "tailrace-ray-elsewhere").symlink_to(foreign)  # what somebody else put beside them
    assert main(["clean"]) == 0
    listed = capsys.readouterr().out
    assert dead_relay in listed
    assert f"process {dead.pid}" in listed
    assert str(gone) in listed
    assert "--yes removes it" in listed
    for name in (living_relay, str(used), str(foreign)):
        assert name not in listed
    assert gone.exists()
    assert main(["clean", "--yes"]) == 0
    assert not gone.exists()
    assert used.exists()
    assert foreign.exists()
    capsys.readouterr()
    main(["clean"])
    assert dead_relay not in capsys.readouterr().out
    assert living_owner(living_relay) is not None


def test_what_a_killed_service_left_goes(sessions, tmp_path, capsys):
    left = tmp_path / "tailrace-service-0123"
    left.mkdir()
    (left / "7.safetensors").write_text("x" * 5000)
    living = OwnDirectory()
    living.make()
    assert main(["clean", "--yes"]) == 0
    assert "5.0 kB  directory of a generation service" in capsys.readouterr().out
    assert not left.exists()
    assert living.path.exists()
    living.remove()
    assert not living.path.exists()


@pytest.mark.parametrize(("kind", "what"), [(ADAPTER, "adapter"), (WEIGHTS, "weights")])
def test_what_a_replica_was_loading_when_it_was_killed_goes(sessions, monkeypatch, tmp_path, capsys, kind, what):
    monkeypatch.setattr("tailrace.rollout.own_directory.SHARED", tmp_path)  # tests beside this one load some
    left = tmp_path / f"tailrace-{kind}-0123"
    left.mkdir()
    living = OwnDirectory(kind)
    living.make()
    assert main(["clean", "--yes"]) == 0
    assert f"0 B  {what} that a replica was loading, {left}" in capsys.readouterr().out
    assert [*tmp_path.iterdir()] == [living.path]
    living.remove()


def test_a_cluster_with_a_process_that_lives_is_used(sessions):
    session = sessions(f"session_{os.getpid()}_x", alive=False)
    assert session in ray_session.left_folders()
    waits = "import time; print(flush=True); time.sleep(60)"
    raylet = subprocess.Popen([sys.executable, "-c", waits, str(session)], stdout=subprocess.PIPE)
    try:
        raylet.stdout.readline()  # it runs, so its command line can be read
        assert session not in ray_session.left_folders()
    finally:
        raylet.kill()
        raylet.communicate()
    assert session in ray_session.left_folders()


@pytest.fixture
def run(tmp_path):
    made = RunDirectory.create(tmp_path / "run", RunConfig().model_dump(mode="json"))
    for name in ("7", ".7.partial", ".8.partial", ".6.replaced"):
        (made.checkpoints / name).mkdir()
        (made.checkpoints / name / "model.safetensors").write_bytes(b"x" * 1500)
    manifest = {"format": 1, "version": 6, "files": {}}
    (made.checkpoints / ".6.replaced" / "trainer.json").write_text(json.dumps(manifest))
    (made.root / "status.json.partial").write_text("{")
    (made.trajectories / "trained.packed").write_bytes(b"x")
    (made.trajectories / "trained.packed.4711.unfinished").write_bytes(b"x")
    yield made
    made.unlock()


@pytest.fixture(autouse=True)
def own_memory(owner):
    """A machine without leftovers of other tests."""


def test_half_written_files_of_a_run_go_but_not_the_only_copy_of_a_checkpoint(run, sessions, capsys):
    run.unlock()
    assert main(["clean", str(run.root), "--yes"]) == 0
    listed = capsys.readouterr().out
    assert f"half-written checkpoint {run.checkpoints / '.8.partial'}" in listed
    assert "1.5 kB" in listed
    assert {path.name for path in run.checkpoints.iterdir()} == {"7", ".6.replaced"}
    assert not (run.root / "status.json.partial").exists()
    assert [path.name for path in run.trajectories.iterdir()] == ["trained.packed"]


def test_a_run_under_way_is_not_touched(run, sessions, capsys):
    assert main(["clean", str(run.root), "--yes"]) == 2
    assert "found a run under way here" in capsys.readouterr().err
    assert (run.checkpoints / ".8.partial").exists()


def test_sizes():
    assert [size(number) for number in (7, 1500, 2_500_000, 12_345_000_000)] == ["7 B", "1.5 kB", "2.5 MB", "12.3 GB"]
