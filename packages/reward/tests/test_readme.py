"""What the README shows, runs."""

import re
from pathlib import Path

import pytest

README = Path(__file__).parents[1] / "README.md"


@pytest.mark.deep
def test_the_examples_run_and_print_what_the_text_says(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    scoring, tasks = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    exec(compile(scoring, "README.md", "exec"), {"__name__": "readme"})
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["0.0 1.0", "0.1 0.0"]
    assert lines[2].startswith("0.2 verifier 'numeric': ScoringError: found the reference answer 'twelve'")
    namespace = {"__name__": "readme"}
    exec(compile(tasks, "README.md", "exec"), namespace)
    assert len(Path("heldout.jsonl").read_text().splitlines()) == 256
    assert len(namespace["train"]) == len(namespace["demonstrations"]) == 20_000
