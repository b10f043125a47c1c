"""The README's driver runs, and is short enough to read."""

import re
import subprocess
import sys
from pathlib import Path

MOST_LINES = 60
DRIVER, LOG = re.findall(r"```python\n(.*?)```", (Path(__file__).parents[1] / "README.md").read_text(), re.DOTALL)


def test_it_drives_the_controller_from_an_event_loop_and_its_log_rebuilds_it(tmp_path):
    assert len(DRIVER.splitlines()) < MOST_LINES
    done = subprocess.run(
        [sys.executable, "-c", DRIVER + LOG], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert "admitted=20, trained=20" in done.stdout
    assert done.stdout.strip().endswith("None")
    assert not done.stderr
