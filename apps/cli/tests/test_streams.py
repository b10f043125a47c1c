"""Standard streams that end early or are full, and Ctrl-C: one line at most, never a traceback, and the work goes on."""

import contextlib
import os
import signal
import subprocess
import sys
import time

import pytest
import typer

from tailrace.cli import command
from tailrace.cli.app import app
from tailrace.cli.main import main

TAILRACE = [sys.executable, "-c", "import sys; from tailrace.cli import command; sys.exit(command())"]
FLEET = ["--set", "fleet.model=Qwen2.5-7B", "--set", "fleet.trainer.gpus=4", "--set", "fleet.rollout.gpus=4"]
FUZZ = ["fuzz", "--seeds", "3"]
SIMULATE = ["simulate", "laminar", *FLEET, "--set", "pipeline.steps=12", "--seed", "0"]


def started(*words, **streams):
    given = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **streams}
    return subprocess.Popen([*TAILRACE, *map(str, words)], text=True, start_new_session=True, **given)


def clean(text):
    assert "Traceback" not in text
    assert "Exception ignored" not in text
    return text


def closed_pipe():
    """The writing end of a pipe that nobody reads."""
    reads, writes = os.pipe()
    os.close(reads)
    return writes


@pytest.mark.parametrize(
    "words",
    [
        ["config", "laminar"],
        ["no-such-command"],
        *(pytest.param(each, marks=pytest.mark.deep) for each in (["plugins"], ["simulate", "--help"], FUZZ)),
    ],
    ids=" ".join,
)
@pytest.mark.deep
def test_a_reader_that_goes_changes_no_status(words):
    whole = started(*words)
    whole.communicate(timeout=120)
    for streams in ("stdout",), ("stderr",), ("stdout", "stderr"):
        pipe = closed_pipe()
        process = started(*words, **dict.fromkeys(streams, pipe))
        os.close(pipe)
        out, err = process.communicate(timeout=120)
        clean((out or "") + (err or ""))
        assert process.returncode == whole.returncode, streams


def test_a_simulation_goes_on_behind_head(tmp_path):
    process = started(*SIMULATE, "--run-dir", tmp_path / "run")
    process.stdout.close()
    err = process.stderr.read()
    assert process.wait(timeout=120) == 0, clean(err)
    assert (tmp_path / "run" / "report.html").exists()


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="only Linux has /dev/full")  # noqa: PTH110
def test_a_full_disk_is_one_line_and_a_status():
    with open("/dev/full", "w") as full:  # noqa: PTH123
        process = started("config", "laminar", stdout=full)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 2
    assert err == "tailrace: stdout: No space left on device; what was printed is not whole\n"


@pytest.mark.parametrize(
    "words",
    [SIMULATE[:-2], pytest.param(["fuzz", "--seeds", "100000"], marks=pytest.mark.deep)],
    ids=lambda words: words[0],
)
def test_ctrl_c_is_one_line_while_it_begins_and_while_it_works(words, tmp_path):
    for after_s in (0.3, 3.0):
        err, status, wait_s = "", -signal.SIGINT, after_s / 2
        # Python itself was not up yet, on a busy machine: none of our lines had run.
        while status != 130 and "tailrace: " not in err and "/tailrace/" not in err:
            wait_s *= 2
            assert wait_s < 60, err
            directory = tmp_path / f"{after_s}-{wait_s}"
            more = ["--run-dir", directory, "--set", "pipeline.steps=100000"] if "simulate" in words else []
            process = started(*words, *more)
            try:
                time.sleep(wait_s)
                os.killpg(process.pid, signal.SIGINT)
                _, err = process.communicate(timeout=60)
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
            status = process.returncode
        clean(err)
        assert status == 130, (after_s, err)
        assert "tailrace: interrupted" in err, (after_s, err)


@pytest.mark.parametrize("method", ["make_context", "parse_args", "invoke"])
def test_ctrl_c_is_one_line_at_each_moment_of_a_command_line(method, monkeypatch, capsys):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(type(typer.main.get_command(app)), method, interrupted)
    assert main(["plugins"]) == 130
    assert capsys.readouterr().err == "tailrace: interrupted\n"


def test_ctrl_c_is_one_line_in_the_body_of_a_class_that_a_command_imports(monkeypatch, capsys):
    class Named:
        def __set_name__(self, owner, name):
            raise KeyboardInterrupt

    def imports(*_, **__):
        type("Imported", (), {"named": Named()})  # of which Python 3.11 makes a RuntimeError

    monkeypatch.setattr(type(typer.main.get_command(app)), "invoke", imports)
    assert main(["plugins"]) == 130
    assert capsys.readouterr().err == "tailrace: interrupted\n"
    monkeypatch.setattr("tailrace.cli.main.main", imports)
    assert command() == 130
    assert capsys.readouterr().err == "tailrace: interrupted\n"
