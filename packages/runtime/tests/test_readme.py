"""The README's example runs."""

import re
from pathlib import Path


def test_the_readme_example_runs(capsys):
    text = (Path(__file__).parents[1] / "README.md").read_text()
    exec(re.search(r"```python\n(.*?)```", text, re.S)[1], {})
    assert "trained=20" in capsys.readouterr().out
