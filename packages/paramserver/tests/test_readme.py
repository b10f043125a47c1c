import re
import subprocess
import sys
from pathlib import Path

import pytest


def examples():
    """Examples that run by themselves; the others are parts."""
    readme = (Path(__file__).parents[1] / "README.md").read_text()
    return [block for block in re.findall(r"```python\n(.*?)```", readme, re.DOTALL) if "__main__" in block]


def test_the_example_runs(tmp_path):
    example, _ = examples()
    script = tmp_path / "example.py"
    script.write_text(
        example.replace('"first"', f'"first-{tmp_path.name}"').replace('"second"', f'"second-{tmp_path.name}"')
    )
    found = subprocess.run(
        [sys.executable, "-W", "error", script], check=True, capture_output=True, text=True, timeout=60
    )
    assert found.stdout.startswith("RawTensor(dtype='float32', shape=(2,)")
    assert found.stderr == ""


def test_the_example_of_torchrl_runs(tmp_path, capsys):
    pytest.importorskip("torchrl", reason="needs the extra torchrl")
    _, example = examples()
    exec(example.replace('"torchrl"', f'"torchrl-{tmp_path.name}"'), {"__name__": "__main__"})
    assert capsys.readouterr().out == "1 True\n"
