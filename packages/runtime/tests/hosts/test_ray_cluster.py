"""What a run's own Ray cluster opens to others: sockets on loopback alone, and a folder that nobody else may enter."""

import ipaddress
import json
import os
import signal
import stat
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from tailrace.processes import ProcessId
from tailrace.runtime.errors import RoleError
from tailrace.runtime.hosts import ray_session
from tailrace.runtime.hosts.ray import RayAddressError, RayHost
from tailrace.runtime.hosts.ray_cluster import RayCluster, start_cluster

DRIVER = """
import sys
from pathlib import Path
from tailrace.contracts import Place
from tailrace.runtime.executor.seam import RoleSpec
from tailrace.runtime.hosts.ray import RayHost
from tailrace.runtime.hosts.ray_cluster import RayCluster

root = Path(sys.argv[1])
host = RayHost(cluster=RayCluster.read(root), root=root)
members = [host.spawn("counter", name, 1, RoleSpec(dict, {"a": 1}), Place(machine=name)) for name in ("", "0")]
assert [member.call("get", "a").result(120) for member in members] == [1, 1]
assert [member.call("ready").exception(60) for member in members]  # so their processes are known
print([member.pid for member in members], flush=True)
sys.stdin.read()
host.leave()
"""


SUCCESSOR = """
import sys
from dataclasses import replace
from pathlib import Path
from tailrace.runtime.hosts.ray import RayHost
from tailrace.runtime.hosts.ray_cluster import RayCluster

root = Path(sys.argv[1])
left = RayCluster.read(root)
host = RayHost(cluster=replace(left, run="another-run"), root=root)
host.end_run(left.run)
host.leave()
"""


def own_processes(root):
    """A process and all that descend from it."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
        except OSError:  # it ended meanwhile
            continue
    found, more = set(), {root}
    while more:
        found |= more
        more = {pid for pid, parent in parents.items() if parent in more} - found
    return found


def listening(pids):
    """The addresses at which processes listen, and the process's name."""
    inodes = {}
    for pid in pids:
        try:
            for handle in Path(f"/proc/{pid}/fd").iterdir():
                inodes[str(handle.readlink())] = Path(f"/proc/{pid}/comm").read_text().strip()
        except OSError:
            continue
    found = []
    for table in ("tcp", "tcp6", "udp", "udp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            state, name = fields[3], inodes.get(f"socket:[{fields[9]}]")
            if name is None or state not in ("0A", "07"):  # listening; of UDP, open to all
                continue
            words = bytes.fromhex(fields[1].partition(":")[0])
            packed = b"".join(struct.pack("!I", *struct.unpack_from("=I", words, at)) for at in range(0, len(words), 4))
            found.append((ipaddress.ip_address(packed), table, name))
    return found


def on_loopback(address):
    """Whether only this machine reaches an address; ::ffff:127.0.0.1 is how IPv6 sockets show 127.0.0.1."""
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback


def test_what_counts_as_loopback():
    told = {
        "127.0.0.1": True,
        "::1": True,
        "::ffff:127.0.0.1": True,
        "::": False,
        "0.0.0.0": False,
        "::ffff:10.0.0.1": False,
    }
    assert {text: on_loopback(ipaddress.ip_address(text)) for text in told} == told


@pytest.mark.timeout(400)
@pytest.mark.skipif(not Path("/proc/net/tcp6").exists(), reason="this system does not list its sockets there")
@pytest.mark.deep
def test_nobody_else_gets_at_a_cluster_of_ones_own(tmp_path, monkeypatch):
    """With the environment of a cluster's pod and of a batch job: another cluster's address, and a long TMPDIR."""
    pytest.importorskip("ray")
    long = tmp_path / ("a_batch_job's_directory_" * 4)
    long.mkdir()
    monkeypatch.setenv("TMPDIR", str(long))
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    monkeypatch.delenv("RAY_TMPDIR", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", None)
    for name in (
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO",
        "RAY_DEDUP_LOGS_SKIP_REGEX",
    ):
        monkeypatch.setenv(name, os.environ.get(name, "1"))  # what starts a cluster sets them for this process
    cluster = start_cluster(tmp_path, cpus=1, unclaimed_s=300.0, machines=1)
    session = Path(cluster.session)
    folder = session.parents[1]
    try:
        driver = subprocess.Popen(
            [sys.executable, "-c", DRIVER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        try:
            members = json.loads(driver.stdout.readline())
            pids = own_processes(cluster.keeper["pid"]) | {driver.pid}
            assert pids > {*members, driver.pid}
            sockets = listening(pids)
            assert {"gcs_server", "raylet"} <= {name for _, _, name in sockets}
            assert [found for found in sockets if not on_loopback(found[0])] == []
        finally:
            driver.communicate()
        os.kill(members[0], signal.SIGSTOP)  # it cannot notice that nobody controls it
        subprocess.run([sys.executable, "-c", SUCCESSOR, str(tmp_path)], check=True, timeout=120)
        deadline = time.monotonic() + 60.0
        while lives := [pid for pid in members if Path(f"/proc/{pid}").exists()]:
            assert time.monotonic() < deadline, f"{lives} live on"
            time.sleep(0.1)
        assert cluster.address.startswith("127.0.0.1:")
        assert folder.name.startswith("tailrace-ray-")
        assert len(os.fsencode(session / "sockets" / "plasma_store")) <= 107
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        ours = [session.parent, session, *(path for path in session.iterdir() if path.is_dir())]
        deadline = time.monotonic() + 60.0  # a process of Ray that starts opens them to all, inside of the folder
        while time.monotonic() < deadline and {stat.S_IMODE(path.stat().st_mode) for path in ours} != {0o700}:
            time.sleep(0.1)
        assert {path.name: stat.S_IMODE(path.stat().st_mode) for path in ours} == dict.fromkeys(
            (p.name for p in ours), 0o700
        )
        assert folder not in ray_session.left_folders()
    finally:
        cluster.end()
    assert not folder.exists()


AHEAD = """
import sys, time
from pathlib import Path
from tailrace.contracts import Place
from tailrace.runtime.executor.seam import RoleSpec
from tailrace.runtime.hosts.ray import RayHost
from tailrace.runtime.hosts.ray_cluster import RayCluster

root = Path(sys.argv[1])
host = RayHost(cluster=RayCluster.read(root), root=root)
host.prepare("data", "0", RoleSpec(dict), Place())
_, actor = host._actors.newest("data", "0")
print(host._ray.get(actor.where.remote())[1].pid, flush=True)
time.sleep(12)  # it prepares the run for longer than the process waits
print(host._ray.get(actor.where.remote())[1].pid, flush=True)
sys.stdin.read()
"""


@pytest.mark.timeout(400)
@pytest.mark.deep
def test_a_process_that_was_started_ahead_lives_as_long_as_its_controller(tmp_path):
    """On a cluster that the run has joined nobody else would end it, and what it was given of devices would be lost."""
    pytest.importorskip("ray")
    cluster = start_cluster(tmp_path, cpus=1, unclaimed_s=4.0)
    try:
        driver = subprocess.Popen(
            [sys.executable, "-c", AHEAD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

        def claimed():
            (tmp_path / "claim").touch()  # the cluster itself is not to end
            return True

        with driver:
            first = driver.stdout.readline()
            assert claimed()
            assert driver.stdout.readline() == first
            driver.kill()
        deadline = time.monotonic() + 60.0
        while claimed() and Path(f"/proc/{int(first)}").exists():
            assert time.monotonic() < deadline, "it lives on"
            time.sleep(0.1)
        assert cluster.process.alive()
    finally:
        cluster.end()


@pytest.mark.parametrize("depth", [0, 1, 40])
def test_the_folder_of_a_cluster_is_private_and_leaves_room_for_its_sockets(tmp_path, monkeypatch, depth):
    base = Path("/tmp", f"k{os.getpid()}") if depth == 0 else tmp_path / "/".join(["sub"] * depth)
    monkeypatch.setenv("RAY_TMPDIR", str(base))
    monkeypatch.setattr(ray_session, "_SHORT", "/tmp")
    folder = ray_session.make()
    try:
        assert (folder.parent == base) is (depth == 0)
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        longest = f"{ray_session.temporary(folder)}/session_2026-01-31_23-59-59_999999_4194304/sockets/plasma_store.1"
        assert len(os.fsencode(longest)) <= 107
    finally:
        ray_session.remove(folder)
        if depth == 0:
            base.rmdir()
    assert not folder.exists()


def test_what_ray_removes_while_a_session_is_sealed_ends_nobody(tmp_path, monkeypatch):
    session = tmp_path / "r" / "session"
    (session / "logs").mkdir(parents=True)
    found = [session / "gone.tmp", session / "logs"]
    for path in (session.parent, session, *found[1:]):
        path.chmod(0o777)
    monkeypatch.setattr(Path, "iterdir", lambda path: iter(found))
    ray_session.seal(session)
    assert {stat.S_IMODE(path.stat().st_mode) for path in (session.parent, session, found[1])} == {0o700}


@pytest.mark.parametrize(("said", "keepers"), [("Exception: The current node timed out during startup.", 3), ("no", 1)])
def test_a_start_that_ray_gave_too_little_time_begins_anew_and_no_other(tmp_path, monkeypatch, said, keepers):
    """The third keeper comes up."""
    pytest.importorskip("ray")
    keeper = tmp_path / "keeper"
    keeper.write_text(f"#!/bin/sh\necho x >> {tmp_path}/started\necho '{said}'; exit 1\n")
    keeper.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(keeper))
    read, there = RayCluster.read, RayCluster("run", "127.0.0.1:1", "token", 0.0, 1.0)
    started = tmp_path / "started"

    def found(root):
        return there if started.exists() and len(started.read_text().split()) == 3 else read(root)

    monkeypatch.setattr(RayCluster, "read", found)
    if keepers == 3:
        assert start_cluster(tmp_path, cpus=1, unclaimed_s=1.0) is there
    else:
        with pytest.raises(RoleError, match=f"did not start on this machine: {said}"):
            start_cluster(tmp_path, cpus=1, unclaimed_s=1.0)
    assert len(started.read_text().split()) == keepers


def test_a_cluster_that_does_not_start_leaves_no_folder_and_is_not_looked_for_elsewhere(tmp_path, monkeypatch):
    ray = pytest.importorskip("ray")

    def fails(**arguments):
        raise RuntimeError(f"no room for it\n{arguments}")

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", fails)
    monkeypatch.setattr(ray_session, "_bases", lambda: [str(tmp_path)])
    monkeypatch.setattr(ray_session, "_SHORT", str(tmp_path))
    with pytest.raises(RayAddressError, match=r"^Ray could not be started on this machine: no room for it$"):
        RayHost()
    assert not list(tmp_path.iterdir())


OTHERS = """
import os, stat, sys
os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
import ray
from tailrace.runtime.hosts.ray import RayHost

ray.init("local", num_cpus=1, include_dashboard=False, log_to_driver=False, _temp_dir=sys.argv[1])
os.chmod(sys.argv[1], 0o755)
RayHost().close()
print(oct(stat.S_IMODE(os.stat(sys.argv[1]).st_mode)))
"""


@pytest.mark.deep
def test_a_cluster_that_this_process_had_before_keeps_its_modes(tmp_path):
    """Others may use it, and what lies beside its session: by default Ray's own folder in /tmp is everybody's."""
    folder = Path("/tmp", f"tr-{os.getpid()}")
    try:
        command = [sys.executable, "-c", OTHERS, str(folder)]
        found = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        assert found.stdout.strip() == "0o755", found.stderr
    finally:
        ray_session.remove(folder)


def test_a_folder_that_is_being_made_is_not_left(tmp_path, monkeypatch):
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    monkeypatch.setattr(ray_session, "_bases", lambda: [str(tmp_path)])
    made, half, dead = (tmp_path / f"tailrace-ray-{number}" for number in range(3))
    for folder in (made, half, dead):
        folder.mkdir()
    (half / ray_session.OWNER).write_text('{"pid": 1')
    (dead / ray_session.OWNER).write_text(
        json.dumps({"pid": 2**22 + 1, "started": 1, "namespace": ProcessId.current().namespace})
    )
    assert ray_session.left_folders() == [dead]


HANGS = """
import sys, time, types
from pathlib import Path
from tailrace.runtime.hosts import ray_keeper

def init(**_):
    print("begins", flush=True)
    if sys.argv[2] == "end":
        raise OSError("it has had its time")
    time.sleep(600)

sys.modules["ray"] = types.SimpleNamespace(init=init, shutdown=lambda: time.sleep(600))
ray_keeper.START_S, ray_keeper.END_S = (1.0, 600) if sys.argv[2] == "start" else (600.0, 1)
ray_keeper.keep(Path(sys.argv[1]), 1, 120.0, 0, 0)
"""


@pytest.mark.parametrize("what", ["start", "end"])
def test_a_start_and_an_end_of_ray_that_hang_end_with_their_deadlines(tmp_path, what):
    (tmp_path / "cluster.token").write_text("0" * 64)
    keeper = subprocess.Popen([sys.executable, "-c", HANGS, str(tmp_path), what], stdout=subprocess.PIPE, text=True)
    with keeper:
        assert keeper.stdout.readline() == "begins\n"
        assert keeper.wait(60) == -signal.SIGALRM


@pytest.mark.parametrize("own", [True, False])
@pytest.mark.deep
def test_under_uv_run_workers_are_not_started_through_uv(own):
    """Not even on a cluster that is joined: with `uv run --no-sync` none of its workers came up."""
    program = (
        f"from tailrace.runtime.hosts.ray_options import environment; environment(own={own})\n"
        "from ray._private import ray_constants; print(ray_constants.RAY_ENABLE_UV_RUN_RUNTIME_ENV)"
    )
    for given, expected in ({}, "False"), ({"RAY_ENABLE_UV_RUN_RUNTIME_ENV": "1"}, "True"):
        said = {name: value for name, value in os.environ.items() if name != "RAY_ENABLE_UV_RUN_RUNTIME_ENV"} | given
        done = subprocess.run([sys.executable, "-c", program], env=said, capture_output=True, text=True, timeout=120)
        assert done.stdout.strip() == expected, done.stderr
