"""Where a command is to write is looked at before its work, which may take hours."""

from pathlib import Path

import pytest

from tailrace.cli.main import main

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
