"""``tailrace serve``: one line when it answers, one line when it cannot, nothing left behind."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

pytest.importorskip("starlette", reason="comes with tailrace-rollout[serve]")
pytest.importorskip("torch", reason="a model is written")

from tailrace.cli.main import main
from tailrace.rollout.testing import save_tiny_model


def fails(capsys, *arguments):
    assert main(["serve", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    return err


def test_a_port_in_use(capsys, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        line = fails(capsys, str(tmp_path / "not-even-looked-at"), "--port", port)
    assert f"127.0.0.1:{port}" in line
    assert "in use" in line


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["gone"], ["gone/config.json", "Hugging Face model directory"]),
        (["gone", "--host", "nowhere.invalid"], ["nowhere.invalid"]),
        (["gone", "--replicas", "0"], ["--replicas", "0"]),
        (["gone", "--port", "70000"], ["--port", "70000"]),
        (["gone", "--ranker", "nothing"], ["nothing"]),
    ],
)
def test_what_is_not_there(capsys, tmp_path, monkeypatch, arguments, words):
    monkeypatch.chdir(tmp_path)
    line = fails(capsys, *arguments)
    assert all(word in line for word in words), line
    assert not list(tmp_path.iterdir())


@pytest.mark.deep
def test_a_signal_while_engines_load_leaves_nothing(tmp_path):
    save_tiny_model(tmp_path / "model", seed=3)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    command = [sys.executable, "-m", "tailrace.cli.main", "serve", "model", "--engine", "transformers"]
    with subprocess.Popen(
        command,
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(scratch)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        while not (made := list(scratch.glob("tailrace-service-*"))):
            assert process.poll() is None, process.stderr.read()
            time.sleep(0.02)
        assert made[0].stat().st_mode & 0o777 == 0o700
        os.kill(process.pid, signal.SIGTERM)
        told, errors = process.communicate(timeout=60)  # it ends with the last process that has its standard error
    assert (process.returncode, told) == (0, ""), errors
    assert not list(scratch.glob("tailrace-service-*"))


@pytest.mark.deep
def test_it_serves_a_model_until_a_signal(tmp_path):
    save_tiny_model(tmp_path / "model", seed=3)
    command = [
        sys.executable,
        "-m",
        "tailrace.cli.main",
        "serve",
        "model",
        "--replicas",
        "1",
        "--engine",
        "transformers",
    ]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        line = process.stdout.readline()
        assert line, process.stderr.read()
        told = json.loads(line)
        assert told.keys() == {"url", "token_file"}
        token = Path(told["token_file"]).read_text()

        def call(path, body=None):
            data = None if body is None else json.dumps(body).encode()
            request = urllib.request.Request(told["url"] + path, data, {"Authorization": f"Bearer {token}"})
            with urllib.request.urlopen(request, timeout=120) as answer:
                return [json.loads(line) for line in answer]

        assert call("/v1/status")[0]["version"] == 0
        lines = call("/v1/generate", {"prompts": [[3, 4, 5], [6]], "samples": 2, "max_tokens": 6})
        assert sorted((one["prompt"], one["sample"]) for one in lines) == [(0, 0), (0, 1), (1, 0), (1, 1)]
        assert all(len(one["tokens"]) == len(one["logprobs"]) == 6 and one["versions"] == [0] * 6 for one in lines)
        os.kill(process.pid, signal.SIGTERM)
        rest, errors = process.communicate(timeout=60)
    assert (process.returncode, rest) == (0, ""), errors
    assert not Path(told["token_file"]).parent.exists()
