"""What publishing takes in each process of a trainer, measured by the bench that prints it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
BENCH = Path(__file__).parents[3] / "tools" / "bench" / "shard_memory.py"


@pytest.mark.deep
@pytest.mark.skipif(not BENCH.exists(), reason="it needs the repository")
def test_a_process_needs_its_shard_once_more_and_one_tensor(tmp_path):
    found = tmp_path / "found.json"
    subprocess.run([sys.executable, str(BENCH), "--json", str(found)], check=True, timeout=280)
    for row in json.loads(found.read_text()):
        assert row["grown_bytes"] <= 1.2 * row["shard_bytes"] + row["bucket_bytes"], row
