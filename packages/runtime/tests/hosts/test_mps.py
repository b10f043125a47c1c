"""The Multi-Process Service is found by its daemon's socket, whatever is left of one that ended."""

import os
import socket

import pytest

from tailrace.runtime.hosts.mps import DIRECTORY, PROGRAM, mps_state


@pytest.fixture
def pipes(tmp_path):
    return {DIRECTORY: str(tmp_path)}


def test_it_runs_while_its_daemon_listens_and_not_when_only_the_socket_is_left(tmp_path, pipes):
    assert not mps_state(pipes).runs
    with socket.socket(socket.AF_UNIX) as daemon:
        daemon.bind(str(tmp_path / "control"))
        daemon.listen()
        found = mps_state(pipes)
        assert (found.directory, found.runs) == (tmp_path, True)
    assert (tmp_path / "control").exists()
    assert not mps_state(pipes).runs


def test_what_is_no_socket_is_no_daemon(tmp_path, pipes):
    (tmp_path / "control").write_text("")
    assert not mps_state(pipes).runs
    assert not mps_state({DIRECTORY: str(tmp_path / ("long" * 100))}).runs


def test_cuda_s_own_directory_is_asked_where_none_is_named(monkeypatch, tmp_path):
    program = tmp_path / PROGRAM
    program.write_text("#!/bin/sh\n")
    program.chmod(0o700)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    found = mps_state({})
    assert (found.installed, str(found.directory)) == (True, "/tmp/nvidia-mps")
