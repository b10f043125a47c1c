"""The examples of docs/environments.md run and say what the page says."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tailrace.reward.sandbox import probe_sandbox
from tailrace.reward.sandbox.select import AUTOMATIC

PAGE = Path(__file__).parents[3] / "docs" / "environments.md"
pytestmark = pytest.mark.skipif(not PAGE.exists(), reason="the page is in the repository only")


def examples():
    return re.findall(r"^```python\n(.*?)^```$(?!\")", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


def run(example, folder):
    (folder / "example.py").write_text(example)
    done = subprocess.run([sys.executable, "example.py"], cwd=folder, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_your_own_environment(tmp_path):
    words, suite, pool, *_ = examples()
    assert all(len(each.splitlines()) < 40 for each in examples())
    (tmp_path / "words.py").write_text(words)
    assert run(suite, tmp_path) == ["Words keeps the contract"]
    assert run(pool, tmp_path) == [
        "weir e .e..",
        "weir weir 1.0",
        "sluice s s.....",
        "sluice u s.u...",
        "sluice sluice 1.0",
        "5 turns, 0 lost",
    ]


@pytest.mark.skipif(not any(probe_sandbox(name).works for name in AUTOMATIC), reason="no sandbox works on this machine")
def test_the_python_tool(tmp_path):
    first, doubled, nothing, done = run(examples()[3], tmp_path)
    assert first.startswith(r"StepResult(observation='5050\n', done=False, reward=0.0, metadata={'verdict': 'ok'")
    assert (doubled, nothing, done) == ("10100", "", "True")
