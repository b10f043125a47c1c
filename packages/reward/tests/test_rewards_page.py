"""The example of docs/rewards.md runs and says what the page says."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[3] / "docs" / "rewards.md"


@pytest.mark.skipif(not PAGE.exists(), reason="the page is in the repository only")
@pytest.mark.deep
def test_the_scheduler_alone(tmp_path):
    (example,) = re.findall(r"```python\n(.*?)```\n\n`scheduler", PAGE.read_text(), re.DOTALL)
    assert len(example.splitlines()) < 40
    (tmp_path / "alone.py").write_text(example)
    done = subprocess.run([sys.executable, "alone.py"], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    said = dict(line.split(" ", 1) for line in done.stdout.splitlines())
    assert said["right"].split() == ["1.0"]
    assert said["wrong"].split() == ["0.0"]
    assert re.fullmatch(r"0\.0 cpu (0\.5|2) s", said["endless"])
    assert said["sum"].split() == ["1.0"]
    assert said["broken"].startswith(
        "has no reward: verifier 'numeric': ScoringError: found the reference answer 'twelve'"
    )
