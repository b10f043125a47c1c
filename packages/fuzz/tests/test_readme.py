"""The README's example runs, in at most 40 lines, and finds its bug."""

import re
from pathlib import Path

import pytest


@pytest.mark.deep
def test_the_readme_example_runs(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code = re.search(r"```python\n(.*?)```", (Path(__file__).parents[1] / "README.md").read_text(), re.DOTALL)[1]
    assert len(code.splitlines()) <= 40
    exec(compile(code, "README", "exec"), {"__name__": "readme"})
    printed = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"20 seeds: \d+ held, [1-9]\d* broke", printed[0])
    assert printed[-2:] == ["nothing waits for ever", "20 seeds: 20 held, 0 broke"]
    assert [path.name for path in tmp_path.glob("fuzz-*.json")]
