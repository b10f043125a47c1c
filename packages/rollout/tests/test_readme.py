"""The README's example runs as it stands."""

import re
from pathlib import Path

import pytest

pytest.importorskip("transformers")

from tailrace.rollout.testing import save_tiny_model

README = Path(__file__).parents[1] / "README.md"


@pytest.mark.deep
def test_the_example_runs(tmp_path, capsys):
    [example, _service] = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    save_tiny_model(tmp_path, seed=3)
    capsys.readouterr()  # where DeepSpeed is installed, it says on standard output that there is no GPU
    exec(compile(example.replace("path/to/model", str(tmp_path)), str(README), "exec"), {})
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["0", "1", "2", "3"]
