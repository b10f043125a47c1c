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
def test_parameters_are_those_of_vllms_own_loaders():
    done = subprocess.run([sys.executable, str(SCRIPT)], capture_output=True, text=True, timeout=280)
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"case"')]
    assert done.returncode == 0, done.stderr[-3000:]
    assert len(lines) == 8
    assert [line for line in lines if line["differing"]] == []
