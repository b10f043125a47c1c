"""The stored figures of benchmarks and the page that is drawn from them."""

import json
import sys
from dataclasses import replace
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture
def history(monkeypatch):
    spec = spec_from_file_location("history", ROOT / "tools/bench/history.py")
    module = module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "history", module)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_what_is_stored(history):
    stored = history.read()
    assert (ROOT / "docs/benchmarks.md").read_text() == history.drawn(stored), "draw it: tools/bench/history.py --draw"
    for bench, lines in stored.items():
        assert bench in history.BENCHES
        for line in lines:
            assert line.spread[0] <= line.value <= line.spread[1], line
            assert line.runs >= 1
            assert str(ROOT) not in line.machine


def test_runs_become_lines_with_median_and_spread(history, monkeypatch, tmp_path):
    monkeypatch.setattr(history, "STORE", tmp_path / "store")
    monkeypatch.setattr(history, "PAGE", tmp_path / "page.md")
    files = []
    for number, value in enumerate((3.0, 1.0, 2.0)):
        files.append(tmp_path / f"{number}.json")
        files[-1].write_text(json.dumps([{"replicas": 4, "trajectories": 1024, "p99_ms": value}]))
    monkeypatch.setattr(sys, "argv", ["history.py", "decision_cycle", "--from", *map(str, files)])
    history.main()
    [line] = history.read()["decision_cycle"]
    assert (line.figure, line.unit) == ("p99 of a cycle, 4 x 1,024", "ms")
    assert (line.value, line.spread, line.runs) == (2.0, (1.0, 3.0), 3)
    monkeypatch.setattr(sys, "argv", [*sys.argv, "--commit", "0badcafe", "--load", "0.25"])
    history.main()  # lines are only added
    assert [(one.commit, one.load) for one in history.read()["decision_cycle"]][1] == ("0badcafe", 0.25)
    assert len(history.read()["decision_cycle"]) == 2
    assert "| p99 of a cycle, 4 x 1,024 | 2 ms | 1 to 3 | 3 |" in (tmp_path / "page.md").read_text()


def test_the_page_shows_the_newest_before_the_older_and_machines_apart(history):
    old = history.Line("aaaaaaaa", "2026-01-01", "a machine", 0.1, "speed", "/s", 10.0, (9.0, 11.0), 3)
    told = [old, replace(old, commit="bbbbbbbb", value=12.0), replace(old, commit="cccccccc", value=1500.0)]
    page = history.drawn({"bench": [*told, replace(old, machine="another")]})
    assert "| speed | 1,500 /s | 9 to 11 | 3 | 0.1 | `cccccccc` | 2026-01-01 | 12 (bbbbbbbb), 10 (aaaaaaaa) |" in page
    assert page.count("## bench") == 2
    assert page.index("a machine.") < page.index("another.")


def test_every_kept_benchmark_is_one(history):
    for name in history.BENCHES:
        assert '"--json"' in (ROOT / f"tools/bench/{name}.py").read_text()
