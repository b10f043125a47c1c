"""A run that does not fit this machine is refused before it starts, with the number that is missing."""

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from tailrace.cli.runs import host_resources
from tailrace.fleetsim.footprint import footprint
from tailrace.pipeline.config.target import configuration


@pytest.fixture
def found():
    """What the quick start takes."""
    return footprint(configuration("laminar", settings=("checkpoint.keep=3", "pipeline.steps=9")))


def test_memory(found, monkeypatch):
    need = found.place("host memory").peak
    monkeypatch.setattr(host_resources, "free_memory", lambda: need)
    assert host_resources.with_room_here(found, None).shortages == ()
    monkeypatch.setattr(host_resources, "free_memory", lambda: need - 1e9)
    (line,) = host_resources.with_room_here(found, None).shortages
    assert line.startswith("keys 'rollout.replicas', 'trainer.processes' and 'relay.count': found members that take")
    assert line.endswith("1.0 GB are missing; set --ray-address to join a cluster")


def test_shared_memory(found, monkeypatch, tmp_path):
    need = found.place("/dev/shm").peak
    monkeypatch.setattr(host_resources, "free_memory", lambda: None)
    monkeypatch.setattr(shutil, "disk_usage", lambda place: SimpleNamespace(free=need))
    assert host_resources.with_room_here(found, None).shortages == ()
    monkeypatch.setattr(shutil, "disk_usage", lambda place: SimpleNamespace(free=need - 1e5))
    (line,) = host_resources.with_room_here(found, None).shortages
    assert "key" in line
    assert "of /dev/shm" in line
    assert line.endswith("0.1 MB are missing; set the container's --shm-size higher")
    monkeypatch.setattr(host_resources, "_SHARED", tmp_path / "none")
    assert host_resources.with_room_here(found, None).shortages == ()


def test_disk(found, monkeypatch, tmp_path):
    need = sum(part.size for part in found.place("disk").parts if not part.at_most)
    monkeypatch.setattr(host_resources, "free_memory", lambda: None)
    monkeypatch.setattr(host_resources, "_SHARED", tmp_path / "none")
    monkeypatch.setattr(shutil, "disk_usage", lambda place: SimpleNamespace(free=need))
    assert host_resources.with_room_here(found, tmp_path / "not" / "yet").shortages == ()
    monkeypatch.setattr(shutil, "disk_usage", lambda place: SimpleNamespace(free=need - 1e6))
    (line,) = host_resources.with_room_here(found, tmp_path / "not" / "yet").shortages
    assert "'checkpoint.keep'" in line
    assert f"of disk of the run directory, {tmp_path}" in line
    assert line.endswith("1.0 MB are missing; set another --run-dir")
    assert host_resources.with_room_here(found, None).shortages == ()  # of a run that has its directory


MOUNTS = """\
22 1 0:20 / / rw,relatime - overlay overlay rw,lowerdir=/a:/b
30 22 0:40 / /home rw - nfs4 server:/export/home rw,vers=4.2
31 30 8:1 / /home/me/local\\040disk rw,noatime shared:1 master:2 - ext4 /dev/sda1 rw
32 22 0:41 / /scratch rw - lustre 10.0.0.1@tcp:/fs rw
33 22 0:42 / /mnt/bucket rw - fuse.s3fs s3fs rw
34 22 0:43 / /mnt/bucket rw - tmpfs tmpfs rw
35 22 0:44 / /mnt/s3 rw - fuse.s3fs s3fs rw
36 22 0:45 / /mnt/here rw - fuse.fuse-overlayfs fuse-overlayfs rw
37 22 0:46 / /share rw - cifs //server/share rw
"""


@pytest.mark.parametrize(
    ("path", "kind", "place", "network"),
    [
        ("/runs/one", "overlay", "/", False),
        ("/home/me/runs", "nfs4", "/home", True),
        ("/homely", "overlay", "/", False),
        ("/home/me/local disk/run", "ext4", "/home/me/local disk", False),
        ("/scratch", "lustre", "/scratch", True),
        ("/mnt/bucket/x", "tmpfs", "/mnt/bucket", False),
        ("/mnt/s3/x", "fuse", "/mnt/s3", True),
        ("/mnt/here/x", "fuse.fuse-overlayfs", "/mnt/here", False),
        ("/share/x", "cifs", "/share", True),
    ],
)
def test_a_network_file_system_under_the_store_is_named(monkeypatch, tmp_path, path, kind, place, network):
    mounts = tmp_path / "mountinfo"
    mounts.write_text(MOUNTS)
    monkeypatch.setattr(host_resources, "_MOUNTS", mounts)
    monkeypatch.setattr(host_resources, "_there", lambda root: root)
    assert host_resources.file_system(Path(path)) == (kind, place)
    note = host_resources.store_note(Path(path))
    assert (note is not None) == network
    if note is not None:
        assert f"found the network file system {kind} (mounted at {place})" in note
        assert "\n" not in note


def test_the_file_system_of_this_machine_is_known(tmp_path):
    assert host_resources.file_system(Path("/proc")) == ("proc", "/proc")
    assert host_resources.file_system(tmp_path) is not None
    assert host_resources.store_note(tmp_path / "not" / "yet") is None


def test_what_is_free_here_is_known():
    assert 1e8 < host_resources.free_memory() < 1e14
    assert Path("/dev/shm") == host_resources._SHARED
