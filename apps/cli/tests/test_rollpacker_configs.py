"""Every configuration beside the app rollpacker that needs no files of ours passes the checks before a run."""

from pathlib import Path

import pytest

from tailrace.cli.main import main

pytestmark = pytest.mark.usefixtures("one_probe_of_each_sandbox")
CONFIGS = sorted((Path(__file__).parents[3] / "configs" / "rollpacker").glob("*.toml"))
RUNNABLE = [
    path for path in CONFIGS if "--dry-run --devices" not in path.read_text()
]  # the others: test_shipped_for_gpus.py


@pytest.mark.parametrize("path", RUNNABLE, ids=lambda path: path.stem)
@pytest.mark.cases(5)
def test_a_dry_run_passes(path, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["run", str(path), "--dry-run"]) == 0
    assert "Nothing was started or written" in capsys.readouterr().out
    assert not list(tmp_path.iterdir())


def test_the_judge_s_files_are_named_in_one_line_each(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert main(["run", str(CONFIGS[0].parent / "judge.toml"), "--dry-run"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert any("questions-train.jsonl" in line for line in lines), lines
    assert any("key 'model.path'" in line for line in lines), lines


def test_the_quick_start_runs_without_the_planner_where_the_engine_spans_one_device(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["run", "rollpacker", "--dry-run", "--set", "rollout.engine=transformers"]) == 0
    notes = [line for line in capsys.readouterr().err.splitlines() if "no replica is resized" in line]
    assert len(notes) == 1
    assert "pipeline.provisioning = 'adaptive-tp-scale-down'" in notes[0]
    assert "'transformers' spans one device" in notes[0]
