"""What the page about judges shows, runs: with a judge of random weights, whose scores say nothing."""

import re
from pathlib import Path

import pytest

from tailrace.trainer.small_model import build_model
from tailrace.trainer.tokenizer import train_tokenizer

PAGE = Path(__file__).parents[1] / "docs" / "rewards.md"


@pytest.mark.deep
def test_the_program_runs_and_prints_what_the_text_says(tmp_path, monkeypatch, capsys):
    section = PAGE.read_text().split("\n## A language model as a judge\n")[1]
    (program,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    assert len(program.splitlines()) < 40
    words = train_tokenizer([program, "right? yes no"], tmp_path / "judge-small", vocab_size=400, words=True)
    build_model(tmp_path / "judge-small", vocab_size=words)
    monkeypatch.chdir(tmp_path)
    exec(compile(program, "rewards.md", "exec"), {"__name__": "judge_page"})
    first, second, third = capsys.readouterr().out.splitlines()
    assert 0 < float(first) < 1
    assert 0 < float(second) < 1
    assert re.fullmatch(r"no score: the judge's input has \d+ tokens, expected at least 1 and at most 1024", third)
