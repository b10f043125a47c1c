"""A run of many trajectories on Ray: no role's memory grows with their number."""

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FLAT = 1024.0  # bytes a trajectory, in the second half; a trajectory of 64 tokens that stays takes more in any role


@pytest.fixture
def bench(monkeypatch):
    spec = spec_from_file_location("long_run", ROOT / "tools/bench/long_run.py")
    module = module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "long_run", module)
    spec.loader.exec_module(module)
    return module


def test_what_grows_with_trajectories_is_seen_in_noise(bench):
    samples = [
        bench.Sample(
            1000 * at, at, {"flat": 2**27 + 2**18 * (at % 3), "grows": 2**27 + 2000 * 1000 * at, "young": 2**20}
        )
        for at in range(20)
    ]
    del samples[3].memory["young"]
    found = {
        role: bench.slope(samples, lambda one, role=role: one.memory.get(role)) for role in ("flat", "grows", "young")
    }
    assert abs(found["flat"]) < 100
    assert found["grows"] == pytest.approx(2000)
    assert found["young"] == 0.0


@pytest.mark.deep
def test_no_role_grows_with_trajectories(bench, tmp_path):
    (tmp_path / "files").mkdir()
    report = bench.measure(16_000, tmp_path / "files", tmp_path / "run")
    assert report["lost"] == 0
    grown = report["grown_bytes_per_trajectory"]
    assert set(grown) >= {"controller", "data 0", "scorer 0", "relay 0", "trainer 0", "replica r0", "replica r1"}
    # The trainer's allocator keeps some of a batch and gives it back: twenty megabytes up and down, whatever the run's length.
    noise = {"trainer 0": 3 * FLAT}
    assert {role: size for role, size in grown.items() if size > noise.get(role, FLAT)} == {}
    # The log, and the archive: 8 bytes a token and a header. The store is trimmed to what a rollback may ask for.
    files = report["file_slope"]
    assert files["log"] < 500
    assert files["trained.packed"] < 2000
    assert files["store.sqlite"] + files["store.sqlite-wal"] < FLAT
