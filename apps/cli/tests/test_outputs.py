"""Where a command is to write is looked at before its work, which may take hours."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tailrace.cli.main import main

SIMULATED = """
app = "laminar"
pipeline = { steps = 3, prompts_per_step = 8, samples_per_prompt = 4, prompts_per_replica = 8 }
rollout.max_tokens = 8192
fleet.model = "Qwen2.5-7B"
fleet.trainer.gpus = 4
fleet.rollout.gpus = 4
fleet.workload.response = [{ median = 900, sigma = 0.9 }]
"""
COMMANDS = {
    "audit": ["audit", "run", "--json"],
    "chaos": ["chaos", "laminar", "--kills", "1", "--mtbf", "9", "--out", "chaos", "--json"],
    "judge fit": ["judge", "fit", "judge", "--json"],
    "judge score": ["judge", "score", "rows.jsonl", "--model", "judge", "--template", "{response}", "--json"],
    "plan": ["plan", "laminar", "--gpus", "8", "--json"],
    "plan, its configuration": ["plan", "laminar", "--gpus", "8", "--out"],
    "rank": ["rank", "data.jsonl", "--out", "ranker", "--json"],
    "reproduce": ["reproduce", "laminar", "--json"],
    "reproduce, its page": ["reproduce", "laminar", "--html"],
}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("none/found.json", "found no folder none, expected one that is there"),
        ("there", "found a folder, expected a file"),
        ("a file/found.json", "found no folder a file, expected one that is there"),
    ],
)
def test_a_file_that_cannot_be_written_is_told_before_anything_else(tmp_path, monkeypatch, capsys, command, path, said):
    monkeypatch.chdir(tmp_path)
    Path("there").mkdir()
    Path("a file").touch()
    assert main([*COMMANDS[command], path]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    (line,) = err.splitlines()
    assert line == f"tailrace: {COMMANDS[command][-1]} {path}: {said}"
    assert sorted(each.name for each in tmp_path.iterdir()) == ["a file", "there"]


def test_a_ranker_is_not_written_over_a_file(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("ranker").write_text("mine")
    assert main(["rank", "data.jsonl", "--out", "ranker"]) == 2
    assert capsys.readouterr().err == "tailrace: --out ranker: found a file, expected a folder\n"


@pytest.fixture(scope="module")
def simulated(tmp_path_factory):
    folder = tmp_path_factory.mktemp("simulated")
    (folder / "mine.toml").write_text(SIMULATED)
    assert main(["simulate", str(folder / "mine.toml"), "--out", str(folder / "run")]) == 0
    return folder


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["report", "run"], "run/report.html"),
        (["query", "run", "SELECT 1"], "tailrace-query-"),
        (["simulate", "mine.toml", "--out", "again"], "again/events.jsonl"),
        (["compare", "run", "run", "--out", "compared"], "compared/compare.html"),
    ],
)
@pytest.mark.cases(1)
def test_a_full_disk_is_told_with_the_file(simulated, tmp_path, monkeypatch, arguments, named):
    """An error of writing has no name by itself: '[Errno 28] No space left on device' was all."""
    pytest.importorskip("duckdb")
    monkeypatch.chdir(tmp_path)
    shutil.copytree(simulated, tmp_path, dirs_exist_ok=True)
    limited = "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))"
    code = f"{limited}; from tailrace.cli.main import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-B", "-c", code, *arguments]  # it would leave half of each module's bytecode
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2, done.stdout
    (line,) = done.stderr.splitlines()
    assert named in line
    assert line.endswith("could not be written: File too large")  # nor how to resume, which a simulated run is not
    assert not list(tmp_path.rglob("*.partial"))
