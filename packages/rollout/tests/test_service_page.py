"""The README's program of stream generation runs as it stands, on a real engine."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("transformers")

from tailrace.rollout.testing import save_tiny_model

README = Path(__file__).parents[1] / "README.md"


@pytest.mark.deep  # test_service_on_engines.py shows what the program does
def test_the_program_runs(tmp_path):
    section = README.read_text().split("### In a training loop of your own\n")[1]
    program = re.search(r"```python\n(.*?)```", section, re.DOTALL).group(1)
    assert len(program.splitlines()) < 40
    save_tiny_model(tmp_path / "model", seed=3)
    # the fastest engine takes minutes to start twice on a small machine; the page's words are the same for each
    program = program.replace("path/to/model", str(tmp_path / "model")).replace(
        "replicas=2", 'replicas=2, engine="transformers"'
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=240, check=False)
    assert ran.returncode == 0, ran.stderr
    assert re.fullmatch(r"48 samples, \d+ of them across an update; the next 3 under 3\n", ran.stdout), ran.stdout
