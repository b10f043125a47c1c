"""`--dry-run --devices` counts a run for devices that are not here: memory, transfers, a forecast; or one line why not."""

from pathlib import Path

import pytest

from tailrace.cli.main import main

SEVEN = str(Path(__file__).parents[3] / "configs/laminar/gsm8k-7b.toml")
PAPER = ["run", SEVEN, "--dry-run", "--devices", "8xH100"]


def test_a_run_is_counted_on_paper(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    assert main(PAPER) == 0
    out = capsys.readouterr().out
    for words in (
        "8 x H100, on paper", "GPU 0 to 3 (H100)", "GPU 4 to 7 (H100)", "host memory", "/dev/shm", "disk of the run directory",
        "moments 15.2 GB", "KV cache of", "publish a version", "write a checkpoint", "Forecast of a step, simulated:",
    ):  # fmt: skip
        assert words in out
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([*PAPER[:-1], "8xH1000"], "unknown device 'H1000', did you mean 'H100'"),
        (["run", SEVEN, "--devices", "8xH100"], "found --devices 8xH100 without --dry-run"),
        ([*PAPER, "--set", "rollout.replicas=6"], "found 10 devices asked for (4 ranks, 6 replicas)"),
        ([*PAPER, "--set", "trainer.options.micro_batch_tokens=131072"], "set trainer.options.micro_batch_tokens ="),
    ],
)
def test_what_does_not_fit_is_one_line(arguments, words, capsys):
    assert main(arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    (line,) = printed.err.splitlines()
    assert words in line


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (("trainer.interface=nope0",), "key 'trainer.interface': found 'nope0', which does not exist; expected one of"),
        (("trainer.processes=3", "trainer.cells=2"), "found 3 and 2, expected a multiple of the cells"),
        (("model.small={hidden=65536, layers=100}",), "GB are missing"),
    ],
)
def test_a_run_that_this_machine_cannot_have_is_refused_before_it_starts(
    settings, words, capsys, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    assert main(["run", "laminar", *(word for one in settings for word in ("--set", one))]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert any(words in line for line in lines)
    assert list(tmp_path.iterdir()) == []


def test_the_quick_start_is_counted_for_this_machine(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["run", "laminar", "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert "host memory" in out
    assert "Forecast" not in out  # no kind of device is named
