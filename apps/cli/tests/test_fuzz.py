"""``tailrace fuzz``: what it prints, what it saves, and the commands that it tells."""

import json
import re
import shlex

import pytest

from tailrace.cli.main import main
from tailrace.fleetsim.host.failures import Injuries
from tailrace.fuzz.draw import draw_case
from tailrace.fuzz.trial import run_case


@pytest.fixture
def _broken(monkeypatch):
    """A replica that serves what arrived damaged."""
    monkeypatch.setattr(Injuries, "torn", lambda injuries, replica: False)


def test_seeds_that_hold(capsys):
    assert main(["fuzz", "--seeds", "6"]) == 0
    printed = capsys.readouterr().out
    assert "6:" in printed
    assert "0 broke" in printed
    assert "seeds/s" in printed
    assert "kill" in printed


@pytest.mark.deep  # test_your_own.py of the package does it from Python
def test_two_at_once_find_the_same(capsys):
    assert main(["fuzz", "--seeds", "4", "--jobs", "2"]) == 0
    printed = capsys.readouterr().out
    assert "4:" in printed
    assert "0 broke" in printed


@pytest.mark.usefixtures("_broken")
def test_what_breaks_is_told_shrunk_and_saved(capsys, tmp_path):
    damaged = (seed for seed in range(1_000) if "torn-pull" in {fault.kind for fault in draw_case(seed).faults})
    seed = next(seed for seed in damaged if run_case(draw_case(seed)).failure)
    few = ["--first-seed", str(seed), "--seeds", "3"]
    assert main(["fuzz", *few, "--out", str(tmp_path / "cases"), "--shrink-for", "1"]) == 1
    printed, at_once = capsys.readouterr()
    assert "only complete weights serve" in printed
    assert re.search(r"^seed \d+ broke: ", at_once, re.MULTILINE)
    told = [line.partition("replay it:  ")[2] for line in printed.splitlines() if "replay it:" in line]
    seeds, file = (shlex.split(command) for command in told)
    assert main([*seeds[1:], "--shrink-for", "0"]) == 1
    assert "only complete weights serve" in capsys.readouterr().out
    assert main(file[1:]) == 1
    assert "only complete weights serve" in capsys.readouterr().out
    case = json.loads((tmp_path / "cases").glob("*.json").__next__().read_text())
    assert {fault["kind"] for fault in case["faults"]} <= {"torn-pull", "kill", "crash", "hang", "partition"}


def test_a_case_that_holds_is_replayed(capsys, tmp_path):
    path = tmp_path / "case.json"
    case = next(case for case in map(draw_case, range(20)) if run_case(case).ended == "finished")
    path.write_text(case.to_json())
    assert main(["fuzz", "--replay", str(path)]) == 0
    assert "holds: finished" in capsys.readouterr().out


def test_a_case_as_a_command_of_run(capsys, tmp_path):
    case = next(case for case in map(draw_case, range(1_000)) if {"kill", "partition"} <= {f.kind for f in case.faults})
    path = tmp_path / "case.json"
    path.write_text(case.model_copy(update={"replica_versions": 2, "scoring_attempts": 3}).to_json())
    assert main(["fuzz", "--replay", str(path), "--as-run"]) == 0
    out, err = capsys.readouterr()
    words = shlex.split(out)
    assert words[:4] == ["tailrace", "run", "laminar", "--executor"]
    kill = next(fault for fault in case.faults if fault.kind == "kill")
    assert f"{kill.role}:{kill.member}@step{kill.at_step}" in words
    assert "partition" in err
    assert "left out, the run has its own: replica_versions = 2\n" in err
    assert "scoring_attempts" not in err  # 3 is what a run has


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--replay", "nothing.json"], "nothing.json: No such file"),
        (["--as-run"], "--as-run: expected --replay FILE"),
        (["--seeds", "0"], "--seeds"),
        (["--replay", "case.json", "--with", "barrier"], "found --policy or --with beside --replay, expected neither"),
        (["--replay", "case.json", "--policy", "sync=barrier"], "found --policy or --with beside --replay"),
    ],
)
def test_a_mistake_is_one_line(arguments, told, capsys):
    assert main(["fuzz", *arguments]) == 2
    err = capsys.readouterr().err.strip()
    assert told in err
    assert len(err.splitlines()) == 1


def test_a_policy_of_ones_own_choice_is_in_every_case(capsys):
    assert main(["fuzz", "--seeds", "6", "--policy", "sync=barrier"]) == 0
    assert "barrier 6" in capsys.readouterr().out
    assert main(["fuzz", "--seeds", "1", "--policy", "snc=barrier"]) == 2
    assert "did you mean 'sync'?" in capsys.readouterr().err
