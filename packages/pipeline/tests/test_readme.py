"""The README's example runs."""

import re
from pathlib import Path


def test_the_readme_example_runs(capsys):
    text = (Path(__file__).parents[1] / "README.md").read_text()
    exec(re.search(r"```python\n(.*?)```", text, re.S)[1], {})
    said = capsys.readouterr().out
    assert "8 Bounded(bound=2" in said
    assert "did you mean 'admission'?" in said
    assert "did you mean 'bounded'?" in said
