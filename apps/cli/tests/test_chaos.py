"""A campaign: whom it strikes, how it follows a run from driver to driver, what it counts, and how it goes on after a cut."""

import json
import os
import signal
import sys
import time

import pytest

from tailrace import contracts as c
from tailrace.cli.errors import CommandError
from tailrace.cli.main import main
from tailrace.cli.runs import chaos, chaos_run
from tailrace.cli.runs.chaos import ChaosOptions, drawn, figures, targets
from tailrace.cli.runs.chaos_run import RunProgress, options, supervise
from tailrace.faulttol import parse_fault
from tailrace.pipeline.config.models import RunConfig
from tailrace.pipeline.run.directory import RunDirectory, write_json
from tailrace.pipeline.run.eventlog import EventLog
from tailrace.pipeline.run.run_checks import check_finished_run

SUMMARY = {
    "steps": 2, "lost_trajectories": 0, "consumed_twice": 0, "contradictions": 0, "turns": 2, "turns_lost": 0,
    "trained_trajectories": 2, "eval_accuracy_after": 0.5,
    "prompts": {"admitted": 1, "trained": 1, "failed": 0, "filtered": {}, "lost": 0},
}  # fmt: skip


def config(**changes):
    return RunConfig.model_validate({"task": {"name": "tool-sums"}, "rollout": {"replicas": 2}, **changes})


def chosen(tmp_path, **changes):
    return ChaosOptions("laminar", tmp_path / "out", **{"kills": 20, "mtbf_s": 5.0, **changes})


def finish(root, trained=("0.0", "0.1"), events=(), **changes):
    directory = RunDirectory(root)
    directory.trajectories.mkdir(parents=True, exist_ok=True)
    (directory.trajectories / "trained.jsonl").write_text(
        "".join(json.dumps({"trajectory": name, "consumed_version": 1}) + "\n" for name in trained)
    )
    with EventLog(directory.events) as log:
        for now, event in enumerate(events):
            log.append(float(now), [event], [])
    write_json(directory.summary, {**SUMMARY, **changes})
    return directory


# ---- whom it strikes ------------------------------------------------------------------------------------------------


def test_everybody_is_struck_and_the_driver_too():
    found = targets(config())
    assert found["environment"] == ["0", "0.worker"]
    assert found["controller"] == ["0"]
    assert set(found) == {"data", "scorer", "trainer", "relay", "replica", "environment", "controller"}
    assert set(targets(config(), ("replica", "data"))) == {"replica", "data"}
    with pytest.raises(CommandError, match="--role environment: found no environment in this run, expected one of"):
        targets(RunConfig.model_validate({"task": {"name": "long-chain-sum"}}), ("environment",))


def test_each_run_has_faults_of_its_own_which_are_the_same_again(tmp_path):
    first, again, second = (drawn(config(), chosen(tmp_path), number, 12) for number in (0, 0, 1))
    assert first == again != second
    assert len(first) == 12
    assert options([parse_fault("hang:trainer:0@3s:backward"), parse_fault("replica:r1@4s")]) == [
        "--hang", "trainer:0@3s:backward", "--kill", "replica:r1@4s",
    ]  # fmt: skip


# ---- one run --------------------------------------------------------------------------------------------------------


class Drivers:
    """Stands for processes: each does something to the run's directory and ends with a status."""

    def __init__(self, monkeypatch, *ends):
        self.ends, self.words = list(ends), []
        monkeypatch.setattr(chaos_run, "_drive", self._drive)

    def _drive(self, words, directory, still_s, tell):
        self.words.append(list(words))
        act, status = self.ends.pop(0)
        act(directory.root)
        return status


def begun(root):
    root.mkdir(exist_ok=True)
    write_json(RunDirectory(root).config, {})
    with EventLog(RunDirectory(root).events) as log:
        log.append(1.0, [c.Struck("controller", "0", "kill", fault="controller:0@1s")], [])


def test_a_run_whose_driver_was_killed_goes_on_with_the_faults_that_are_left(tmp_path, monkeypatch):
    root, faults = tmp_path / "run-000", [parse_fault("controller:0@1s"), parse_fault("data:0@9s")]
    drivers = Drivers(monkeypatch, (begun, 128 + signal.SIGKILL), (finish, 0))
    watched = supervise(root, ["laminar"], faults, still_s=9.0, tell=lambda line: None)
    assert (watched.ended, watched.drivers) == ("finished", 2)
    assert watched.faults.not_struck == ["data:0@9s"]
    assert drivers.words == [
        ["laminar", "--run-dir", str(root), "--plain", "--kill", "controller:0@1s", "--kill", "data:0@9s"],
        ["--resume", str(root), "--plain", "--kill", "data:0@9s"],
    ]


def test_a_run_that_was_cut_before_its_log_began_goes_on(tmp_path, monkeypatch):
    """The warm start takes minutes, and a new run is refused in its directory."""
    directory = RunDirectory.create(tmp_path / "run-000", {})
    directory.unlock()
    drivers = Drivers(monkeypatch, (finish, 0))
    fault = parse_fault("data:0@9s")
    assert supervise(directory.root, ["laminar"], [fault], still_s=9.0, tell=lambda line: None).ended == "finished"
    assert drivers.words == [["--resume", str(directory.root), "--plain", "--kill", "data:0@9s"]]


def test_one_that_stands_still_is_a_hang_and_one_that_fails_again_and_again_has_failed(tmp_path, monkeypatch):
    Drivers(monkeypatch, (begun, None))
    assert supervise(tmp_path / "a", [], (), still_s=9.0, tell=lambda line: None).ended == "hung"
    Drivers(monkeypatch, *[(begun, 1)] * chaos_run.MOST_FAILURES)
    assert supervise(tmp_path / "b", [], (), still_s=9.0, tell=lambda line: None).ended == "failed"


def test_one_whose_driver_is_killed_again_and_again_and_gets_no_further_has_failed(tmp_path, monkeypatch):
    """The system may do so, for its memory. It was resumed without end."""

    def again(root):
        with EventLog(RunDirectory(root).events) as log:
            log.append(2.0, [c.Resumed()], [])

    killed = 128 + signal.SIGKILL
    drivers = Drivers(monkeypatch, (begun, killed), *[(again, killed)] * chaos_run.MOST_FAILURES, (finish, 0))
    watched = supervise(tmp_path / "run-000", [], (), still_s=9.0, tell=lambda line: None)
    assert (watched.ended, watched.drivers, len(drivers.ends)) == ("failed", 1 + chaos_run.MOST_FAILURES, 1)


def test_one_that_cannot_begin_ends_the_campaign_with_its_line(tmp_path, monkeypatch):
    def refused(root):
        root.with_suffix(".txt").write_text("tailrace: key 'task': found nothing\n")

    Drivers(monkeypatch, (refused, 2))
    with pytest.raises(CommandError, match="found nothing"):
        supervise(tmp_path / "a", [], (), still_s=9.0, tell=lambda line: None)


def test_one_that_a_killed_campaign_left_under_way_is_not_counted_as_failed(tmp_path):
    root = tmp_path / "run-000"
    begun(root)
    directory = RunDirectory(root)
    directory.lock()
    with pytest.raises(CommandError, match="run-000: found this run under way"):
        supervise(root, [], (), still_s=9.0, tell=lambda line: None)
    directory.unlock()


def test_progress_is_what_gets_further_and_not_what_dies_and_comes_back(tmp_path):
    directory = RunDirectory(tmp_path)
    progress = RunProgress(directory)
    marks = [progress.mark()]
    with EventLog(directory.events) as log:
        for event in (c.Tick(), c.Up("data", "0"), c.Stepped(1), c.Tick()):
            log.append(1.0, [event], [])
            marks.append(progress.mark())
    assert marks[0] == marks[1] == marks[2] != marks[3] == marks[4]
    write_json(directory.status, {"phase": "control", "detail": "step 3", "step": 1, "steps": 4})
    assert progress.mark() != marks[4]


def test_progress_is_told_to_a_person(tmp_path, monkeypatch):
    sleeps, told = sleeper(tmp_path), []
    begun(tmp_path / "run")
    write_json(RunDirectory(tmp_path / "run").status, {"phase": "training", "detail": "", "step": 3, "steps": 4})
    monkeypatch.setattr(sys, "executable", sleeps)
    monkeypatch.setattr(chaos_run, "_TELL_S", 0.0)
    monkeypatch.setattr(chaos_run, "_LOOK_S", 0.05)
    assert chaos_run._drive([], RunDirectory(tmp_path / "run"), 0.1, told.append) is None
    assert set(told) == {"run: training, step 3 of 4, faults struck: 1"}


def sleeper(root):
    path = root / "sleeps"
    path.write_text(f"#!{sys.executable}\nimport time\ntime.sleep(600)\n")
    path.chmod(0o755)
    return str(path)


def test_a_process_that_stands_still_is_ended(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "executable", sleeper(tmp_path))
    assert chaos_run._drive([], RunDirectory(tmp_path / "run"), 0.1, lambda line: None) is None


# ---- what it counts -------------------------------------------------------------------------------------------------


def test_what_store_and_log_say_of_a_run(tmp_path):
    turned = c.Turned("0.0", 1, 5, False, 0.1, 1, c.SessionOrigin.HELD)
    found = check_finished_run(finish(tmp_path / "a", events=(turned, turned)))
    assert (found.turns_again, found.clean, found.trained) == (1, True, 2)
    found = check_finished_run(finish(tmp_path / "b", trained=("0.0", "0.1", "0.1")))
    assert (found.twice, found.clean) == (1, False)
    found = check_finished_run(finish(tmp_path / "c", trained=("0.0",)))
    assert found.disagree == ("the store has 1 trajectories as trained on, the summary 2",)


def test_the_figures_of_several_runs(tmp_path):
    row = {
        "ended": "finished", "drivers": 2, "seconds": 5.0, "not_struck": ["data:0@9s"], "difference": 0.1,
        "struck": [{"role": "trainer", "kind": "kill", "phase": "fetch"}, {"role": "data", "kind": "hang", "phase": ""}],
        "found": {
            "lost": 1, "twice": 0, "trained": 9, "contradictions": 0, "turns": 4, "turns_lost": 2, "turns_again": 1,
            "disagree": (), "steps": 3,
        },
    }  # fmt: skip
    hung = {**row, "ended": "hung", "found": None, "difference": None, "struck": []}
    found = figures([row, hung, {**row, "difference": 0.3}])
    assert (found["kills"], found["lost_trajectories"], found["turns_lost"], found["hangs"]) == (4, 2, 4, 1)
    assert found["accuracy_difference"] == pytest.approx(0.2)
    assert found["accuracy_difference_error"] == pytest.approx(0.1)
    assert found["by_phase"] == {"trainer fetch": 2}
    assert found["by_role"] == {"data": 2, "trainer": 2}
    assert figures([hung])["accuracy_difference"] is None


def test_a_campaign_goes_on_where_it_was_cut(tmp_path, monkeypatch):
    made = []

    def supervised(root, words, faults, *, still_s, tell):
        made.append(root.name)
        if len(made) == 2:
            os.kill(os.getpid(), signal.SIGTERM)  # as a scheduler does
            time.sleep(30)
        finish(root)
        rows = [parse_fault("data:0@1s")] * min(7, len(faults))
        log = [c.Struck(fault.role, "0", "kill", fault=str(fault)) for fault in rows]
        with EventLog(RunDirectory(root).events) as written:
            for event in log:
                written.append(2.0, [event], [])
        return chaos_run.WatchedRun("finished", 1, 1.0, chaos_run.struck(RunDirectory(root), rows))

    monkeypatch.setattr(chaos, "supervise", supervised)
    monkeypatch.setattr(chaos, "check", lambda config, where: None)
    words = ["chaos", "laminar", "--kills", "10", "--mtbf", "5", "--out", str(tmp_path / "out")]
    assert main(words) == 130
    assert main(words) == 0
    assert made == ["run-000", "run-001", "run-001"]
    found = json.loads((tmp_path / "out" / "chaos.json").read_text())
    assert (found["kills"], found["runs"], found["lost_trajectories"], found["accuracy_difference"]) == (10, 2, 0, None)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--kills", "9"], "found a campaign with kills = 10, expected 9, or another --out"),
        (["--kills", "10", "--role", "ranker"], "--role ranker: found no ranker in this run"),
    ],
)
def test_what_cannot_go_on_is_one_line(tmp_path, capsys, monkeypatch, words, said):
    monkeypatch.setattr(chaos, "check", lambda config, where: None)
    out = tmp_path / "out"
    out.mkdir()
    asked = ChaosOptions("laminar", out, kills=10, mtbf_s=5.0).asked
    write_json(out / "campaign.json", asked)
    assert main(["chaos", "laminar", "--mtbf", "5", "--out", str(out), *words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line


def test_a_directory_of_something_else_is_left_alone(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(chaos, "check", lambda config, where: None)
    (tmp_path / "mine.txt").write_text("mine")
    assert main(["chaos", "laminar", "--kills", "1", "--mtbf", "5", "--out", str(tmp_path)]) == 2
    assert "found files that are no campaign" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
