"""``tailrace doctor``: every finding is of this machine, in words that say what to do."""

import json
import os
import resource
import shutil
import socket
from types import SimpleNamespace

import pytest

from tailrace.cli.components import doctor as doctor_module
from tailrace.cli.components.doctor import doctor, look
from tailrace.contracts import plugins
from tailrace.rollout import EngineMissingError

TOPICS = ["machine", "devices", "libraries", "engines", "sandboxes", "apps"]


def by_name(findings):
    return {(one.topic, one.name): one for one in findings}


def test_everything_is_looked_at_in_order_and_in_one_line_each():
    found = list(look())
    assert list(dict.fromkeys(one.topic for one in found)) == TOPICS
    assert all(one.text and "\n" not in one.text for one in found)
    named = by_name(found)
    assert named["machine", "cores"].text.startswith(f"{len(os.sched_getaffinity(0))} of ")
    assert {name for topic, name in named if topic == "apps"} == set(plugins.names("tailrace.app"))
    assert named["libraries", "torch"].state == "has"
    assert named["engines", "transformers"].text.startswith("ready")


def test_json_has_the_same_and_the_status_says_whether_an_app_can_run(capsys):
    status = doctor(as_json=True)
    rows = json.loads(capsys.readouterr().out)
    assert [set(row) for row in rows] == [{"topic", "name", "state", "text"}] * len(rows)
    ready = [row for row in rows if row["topic"] == "apps" and row["state"] == "has"]
    assert status == (0 if ready else 1)


def test_what_lacks_is_told_with_what_to_do(monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=64_000_000))
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 524_288))
    monkeypatch.setattr(doctor_module, "file_system", lambda _: ("nfs4", "/home"))
    machine = by_name(doctor_module._machine())
    assert machine["machine", "/dev/shm"].state == "lacks"
    assert "--shm-size" in machine["machine", "/dev/shm"].text
    assert machine["machine", "open files"].text == "1,024, fewer than 4,096: ulimit -n 65536"
    assert machine["machine", "disk"].text.endswith("choose a --run-dir on one")


@pytest.mark.parametrize(
    ("limits", "state", "text"),
    [
        ((1024, resource.RLIM_INFINITY), "lacks", "1,024, fewer than 4,096: ulimit -n 65536"),
        ((1024, 2048), "lacks", "1,024, fewer than 4,096: raise the hard limit, which is 2,048"),
        ((resource.RLIM_INFINITY, resource.RLIM_INFINITY), "has", "inf"),
        ((65_536, 65_536), "has", "65,536"),
    ],
)
def test_limits_of_open_files(monkeypatch, limits, state, text):
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits)
    found = doctor_module._open_files()
    assert (found.state, found.text) == (state, text)


def test_an_app_whose_disk_is_full_cannot_run(monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=0, total=1, used=1))
    found = by_name(doctor_module._apps())
    assert {one.state for one in found.values()} == {"lacks"}


def test_no_app_that_can_run_is_status_1(monkeypatch, capsys):
    def none(name="auto"):
        raise EngineMissingError("found no engine")

    monkeypatch.setattr(doctor_module, "select_engine", none)
    monkeypatch.setattr(doctor_module, "_sandboxes", lambda: iter(()))
    monkeypatch.setattr(
        doctor_module,
        "_apps",
        lambda: iter([doctor_module.Diagnosis("apps", "laminar", "lacks", "key 'rollout.engine': found no engine")]),
    )
    assert doctor(as_json=False) == 1
    out = capsys.readouterr().out
    assert "auto" in out
    assert out.strip().endswith("no app's quick start can run here: see apps")


def test_mps_is_told_with_how_to_start_it(monkeypatch, tmp_path):
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    absent = doctor_module._mps()
    assert (absent.state, absent.text.endswith("nvidia-cuda-mps-control is not installed")) == ("note", True)
    program = tmp_path / "nvidia-cuda-mps-control"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o700)
    assert doctor_module._mps().text.endswith(f"CUDA_MPS_PIPE_DIRECTORY={tmp_path} nvidia-cuda-mps-control -d")
    with socket.socket(socket.AF_UNIX) as daemon:
        daemon.bind(str(tmp_path / "control"))
        daemon.listen()
        assert doctor_module._mps().state == "has"
