import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("vllm_models.py")


@pytest.mark.long
@pytest.mark.timeout(290)
@pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="needs vLLM")
@pytest.mark.parametrize(
    "numbers",
    [
        pytest.param(("1", "5", "6"), id="dense, experts and a shared expert"),
        pytest.param(("0", "2", "3", "4", "7"), id="wider ones", marks=pytest.mark.deep),
    ],
)
@pytest.mark.deep
def test_parameters_are_those_of_vllms_own_loaders(numbers):
    done = subprocess.run([sys.executable, str(SCRIPT), *numbers], capture_output=True, text=True, timeout=280)
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"case"')]
    assert done.returncode == 0, done.stderr[-3000:]
    assert len(lines) == len(numbers)
    assert [line for line in lines if line["differing"]] == []
