"""The memory of a whole run is what the arithmetic predicts: `tools/bench/run_memory.py` on three configurations."""

import importlib.util
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[1] / "tools" / "bench" / "run_memory.py"


@pytest.fixture(scope="module")
def bench():
    spec = importlib.util.spec_from_file_location("run_memory", BENCH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.deep
@pytest.mark.timeout(2400)
def test_a_runs_memory_is_within_ten_percent(bench, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    for name in ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_"):
        monkeypatch.setenv(name, str(bench.MIB))
    found = bench.measure()
    assert set(found) == set(bench.CONFIGURATIONS)
    for name, row in found.items():
        assert row["predicted_peak"] == pytest.approx(row["peak"], rel=0.1), name
        # a version lies in shared memory as often as relays hold it: counted to the page
        shared, expected = row["owners"]["shared memory"], row["predicted"]["shared memory"]
        assert shared == pytest.approx(expected, rel=0.1, abs=2 * bench.MIB), name


def test_processes_are_told_apart(bench, tmp_path):
    assert bench.owner_of("python -m tailrace.paramserver.relay --name x", "local") == "relays"
    assert bench.owner_of("python -m tailrace.reward.worker {}", "ray") == "scorer"
    assert bench.owner_of("python -m tailrace.cli.runs.control", "local") == "members"
    assert bench.owner_of("python -m tailrace.cli.runs.control", "ray") == "controller"
    status = tmp_path / "status.json"
    assert bench.members(status) == {}
    status.write_text(
        '{"members": [{"role": "replica", "id": "r0", "pid": 7}, {"role": "data", "id": "0", "pid": null}]}'
    )
    assert bench.members(status) == {7: "replicas"}


def test_a_process_is_sampled(bench, tmp_path):
    import os

    found = bench.sample(os.getpid(), "local", tmp_path / "none")
    assert sum(found.values()) > bench.MIB
    assert "shared memory" in found
