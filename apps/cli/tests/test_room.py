"""A run that does not fit this machine is refused before it starts."""

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from tailrace.cli.errors import NotHereError
from tailrace.cli.runs import room
from tailrace.pipeline.config.models import AdapterTable
from tailrace.pipeline.config.target import configuration

PARAMETERS = 1_000_000_000


@pytest.fixture
def config(monkeypatch):
    """A model of 1e9 parameters, on a machine without GPU, two replicas and a relay."""
    monkeypatch.setattr(room, "_GPU", Path("/nowhere"))
    monkeypatch.setattr(room, "count_parameters", lambda path: PARAMETERS)
    return configuration(
        "laminar", settings=("model.path=model", "model.small={}", "checkpoint.keep=3", "pipeline.steps=9")
    )


def test_memory(config, monkeypatch):
    # By hand: a trainer of 16 bytes a parameter, three copies of 2 bytes, seven processes of 100 MB.
    need = 16e9 + 3 * 2e9 + 7 * 0.1e9
    monkeypatch.setattr(room, "_free_memory", lambda: need)
    room.check_memory(config)
    monkeypatch.setattr(room, "_free_memory", lambda: need - 1)
    with pytest.raises(NotHereError, match=r"at least 22\.7 GB of memory, expected at most 22\.7 GB"):
        room.check_memory(config)


def test_shared_memory(config, monkeypatch, tmp_path):
    need = 2 * 2e9  # one relay, two versions of 2 bytes a parameter
    monkeypatch.setattr(shutil, "disk_usage", lambda place: SimpleNamespace(free=need))
    room.check_shared_memory(config)
    monkeypatch.setattr(shutil, "disk_usage", lambda place: SimpleNamespace(free=need - 1))
    with pytest.raises(NotHereError, match=r"relay\.count' = 1.* at least 4\.0 GB of weights in /dev/shm.*--shm-size"):
        room.check_shared_memory(config)
    monkeypatch.setattr(room, "_SHARED", tmp_path / "none")
    room.check_shared_memory(config)


def test_disk(config, monkeypatch, tmp_path):
    need = 5 * 12e9  # three checkpoints are kept while the next two are written
    monkeypatch.setattr(shutil, "disk_usage", lambda place: SimpleNamespace(free=need))
    room.check_disk(config, tmp_path / "not" / "yet")
    monkeypatch.setattr(shutil, "disk_usage", lambda place: SimpleNamespace(free=need - 1))
    with pytest.raises(NotHereError, match=rf"checkpoint\.keep' = 3.* 60\.0 GB, 12\.0 GB each.* at {tmp_path};"):
        room.check_disk(config, tmp_path / "not" / "yet")


def test_an_adapter_is_small_beside_its_base(config, monkeypatch, tmp_path):
    adapted = config.model_copy(update={"trainer": config.trainer.model_copy(update={"adapter": AdapterTable(rank=8)})})
    need = 3 * 2e9 + 7 * 0.1e9  # two replicas and the trainer's base, in 16 bits at least
    monkeypatch.setattr(room, "_free_memory", lambda: need)
    room.check_memory(adapted)
    monkeypatch.setattr(room, "_free_memory", lambda: need - 1)
    with pytest.raises(NotHereError, match=r"at least 6\.7 GB"):
        room.check_memory(adapted)
    monkeypatch.setattr(shutil, "disk_usage", lambda place: SimpleNamespace(free=0))
    room.check_shared_memory(adapted)
    room.check_disk(adapted, tmp_path)


def test_what_is_free_here_is_known():
    assert 1e8 < room._free_memory() < 1e14
