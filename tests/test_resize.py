"""A real run on two cores: vLLM goes from 2 x TP 1 to 1 x TP 2 and back, and says what transformers says."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[1] / "tools/bench/resize.py"


@pytest.mark.deep
@pytest.mark.timeout(3600)
def test_a_run_resizes_vllm_and_back(tmp_path):
    pytest.importorskip("vllm")
    out = tmp_path / "out.json"
    subprocess.run([sys.executable, str(BENCH), "--json", str(out)], check=True, timeout=3600)
    found = json.loads(out.read_text())
    assert [(one["tp"], one["replicas"]) for one in found["stretches"]] == [(1, 2), (2, 1), (1, 2)]
    assert [one["tp"] for one in found["resizes"]] == [2, 1]
    one, two, _ = found["stretches"]
    # a replica of one device holds what its cache holds, one of two devices twice as much, since each has half of the heads
    assert two["kv_capacity_tokens"] == one["kv_capacity_tokens"]
    assert set(found["largest_logprob_error"]) == {"tp 1", "tp 2"}
    assert max(found["largest_logprob_error"].values()) < 1e-4
