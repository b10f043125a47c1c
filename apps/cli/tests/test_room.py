"""A run that does not fit this machine is refused before it starts, with the number that is missing."""

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from tailrace.cli.runs import room
from tailrace.fleetsim.footprint import footprint
from tailrace.pipeline.config.target import configuration


@pytest.fixture
def found():
    """What the quick start takes."""
    return footprint(configuration("laminar", settings=("checkpoint.keep=3", "pipeline.steps=9")))


def test_memory(found, monkeypatch):
    need = found.place("host memory").peak
    monkeypatch.setattr(room, "_free_memory", lambda: need)
    assert room.with_room_here(found, None).shortages == ()
    monkeypatch.setattr(room, "_free_memory", lambda: need - 1e9)
    (line,) = room.with_room_here(found, None).shortages
    assert line.startswith("keys 'rollout.replicas', 'trainer.processes' and 'relay.count': found members that take")
    assert line.endswith("1.0 GB are missing; set --ray-address to join a cluster")


def test_shared_memory(found, monkeypatch, tmp_path):
    need = found.place("/dev/shm").peak
    monkeypatch.setattr(room, "_free_memory", lambda: None)
    monkeypatch.setattr(shutil, "disk_usage", lambda place: SimpleNamespace(free=need))
    assert room.with_room_here(found, None).shortages == ()
    monkeypatch.setattr(shutil, "disk_usage", lambda place: SimpleNamespace(free=need - 1e5))
    (line,) = room.with_room_here(found, None).shortages
    assert "key" in line
    assert "of /dev/shm" in line
    assert line.endswith("0.1 MB are missing; set the container's --shm-size higher")
    monkeypatch.setattr(room, "_SHARED", tmp_path / "none")
    assert room.with_room_here(found, None).shortages == ()


def test_disk(found, monkeypatch, tmp_path):
    need = found.place("disk").peak
    monkeypatch.setattr(room, "_free_memory", lambda: None)
    monkeypatch.setattr(room, "_SHARED", tmp_path / "none")
    monkeypatch.setattr(shutil, "disk_usage", lambda place: SimpleNamespace(free=need))
    assert room.with_room_here(found, tmp_path / "not" / "yet").shortages == ()
    monkeypatch.setattr(shutil, "disk_usage", lambda place: SimpleNamespace(free=need - 1e6))
    (line,) = room.with_room_here(found, tmp_path / "not" / "yet").shortages
    assert "'checkpoint.keep'" in line
    assert f"of disk of the run directory, {tmp_path}" in line
    assert line.endswith("1.0 MB are missing; set another --run-dir")
    assert room.with_room_here(found, None).shortages == ()  # of a run that has its directory


def test_what_is_free_here_is_known():
    assert 1e8 < room._free_memory() < 1e14
    assert Path("/dev/shm") == room._SHARED
