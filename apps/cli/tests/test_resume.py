"""Going on with a run: what may change is taken and kept, the rest is refused at once with its reason."""

import json

import pytest

from tailrace.cli.main import main
from tailrace.contracts import Tick
from tailrace.pipeline.config.models import RunConfig
from tailrace.pipeline.run.directory import RunDirectory
from tailrace.pipeline.run.eventlog import EventLog
from tailrace.pipeline.run.launching.attaching import to_go_on


@pytest.fixture
def run(tmp_path):
    """A directory of a run that has done three steps."""
    made = RunDirectory.create(tmp_path / "run", RunConfig().model_dump(mode="json"))
    made.metrics.write_text("".join(json.dumps({"kind": "step", "step": step}) + "\n" for step in (1, 2, 3)))
    made.unlock()
    return made


def refused(capsys, *arguments):
    assert main(["run", "--resume", *map(str, arguments)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    return err.splitlines()


def test_everything_that_may_not_change_is_refused_at_once_with_its_reason(run, capsys):
    before = run.config.read_text()
    given = (
        "pipeline.steps=9",
        "pipeline.admission=on-policy",
        "rollout.max_tokens=9",
        "task.train=x.jsonl",
        'faults=["replica@3s"]',
    )
    settings = [part for text in given for part in ("--set", text)]
    lines = refused(capsys, run.root, *settings, "--seed", 4, "--executor", "local")
    assert [line.split("'")[1] for line in lines] == [
        "seed",
        "task.train",
        "pipeline.admission.name",
        "rollout.max_tokens",
        "executor.name",
        "faults",
    ]
    assert lines[0].endswith("found 4, expected 0 as before: the run's prompts and first weights were made with it")
    assert lines[2].endswith(
        "found 'on-policy', expected 'inherent' as before: the decisions in the event log were made with it"
    )
    assert lines[5].endswith("those of this driver are given by --kill, --hang, --stall and --raise")
    assert run.config.read_text() == before


def test_a_driver_that_goes_on_has_faults_of_its_own(run, capsys):
    assert any(
        "found no machine of this run's own" in line for line in refused(capsys, run.root, "--kill", "machine@9s")
    )
    config = to_go_on(run.configuration(), run, {"faults": ("hang:data@9s",), "fault_seed": 3})
    assert (config.faults, config.mtbf_s, config.fault_seed) == (("hang:data@9s",), None, 3)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (["pipeline.steps=2"], "key 'pipeline.steps': found 2, expected at least 3: so many batches are trained on"),
        (["deadlines.silent=2"], "found the unknown key 'deadlines.silent', expected"),
        (["deadlines.silent_s=never"], "key 'deadlines.silent_s': found 'never', expected"),
    ],
)
def test_a_wrong_value_is_one_line(run, capsys, settings, said):
    (line,) = refused(capsys, run.root, *(part for text in settings for part in ("--set", text)))
    assert said in line


def test_replicas_are_the_policys_where_it_decides_them(run, capsys):
    content = json.loads(run.config.read_text())
    content["run"]["pipeline"]["provisioning"] = {"name": "mine"}
    run.config.write_text(json.dumps(content))
    (line,) = refused(capsys, run.root, "--set", "rollout.replicas=3")
    assert "the policy 'mine' decides how many replicas there are" in line


def test_a_generated_task_keeps_its_verifier(run, capsys):
    content = json.loads(run.config.read_text())
    content["run"]["task"]["name"] = "long-chain-sum"
    run.config.write_text(json.dumps(content))
    (line,) = refused(capsys, run.root, "--set", "task.verifier=exact")
    assert "the generated task 'long-chain-sum' has its own verifier" in line


@pytest.mark.parametrize("flag", [["--dry-run"], ["--run-dir", "elsewhere"]])
def test_options_that_have_no_meaning_are_refused(run, capsys, flag):
    (line,) = refused(capsys, run.root, *flag)
    assert f"found {flag[0]}, expected --set or --plain at most" in line


def test_changes_are_kept_with_what_the_log_began_with(run):
    first = run.configuration()
    with EventLog(run.events) as log:
        log.append(1.0, [Tick()], [])
    for steps in (70, 80):
        before = run.configuration()
        now = before.model_copy(update={"pipeline": before.pipeline.model_copy(update={"steps": steps})})
        run.change(now.model_dump(mode="json"), {"pipeline.steps": [before.pipeline.steps, steps]})
    again = RunDirectory.open(run.root)
    assert again.configuration().pipeline.steps == 80
    assert again.began_with() == first
    assert [change["changed"] for change in again.changes()] == [
        {"pipeline.steps": [first.pipeline.steps, 70]},
        {"pipeline.steps": [70, 80]},
    ]


@pytest.mark.deep
def test_a_finished_run_goes_on_with_more_steps_and_other_replicas_and_keeps_them(tmp_path, monkeypatch, capsys):
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    assert main(["init", "mine"]) == 0
    settings = {
        "pipeline.steps": 1,
        "pipeline.prompts_per_step": 4,
        "pipeline.samples_per_prompt": 2,
        "rollout.max_tokens": 32,
        "evaluation.controls": "false",
        "warm_start.steps": 20,
    }
    given = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
    assert main(["run", "mine/tailrace.toml", "--executor", "local", "--plain", "--run-dir", "run", *given]) == 0
    assert main(["run", "--resume", "run"]) == 2
    assert "expected one to go on with, or --set pipeline.steps=N with more than its 1" in capsys.readouterr().err
    more = ["--set", "pipeline.steps=2", "--set", "rollout.replicas=1", "--set", "deadlines.step_s=45"]
    assert main(["run", "--resume", "run", "--plain", *more]) == 0
    words = " ".join(capsys.readouterr().out.split())
    assert "changed on resume pipeline.steps from 1 to 2, rollout.replicas from 2 to 1, deadlines.step_s" in words
    assert main(["run", "--resume", "run", "--plain", "--set", "pipeline.steps=3"]) == 0
    directory = RunDirectory.open(tmp_path / "run")
    summary = json.loads(directory.summary.read_text())
    assert (summary["steps"], summary["lost_trajectories"], summary["consumed_twice"]) == (3, 0, 0)
    assert len(summary["changes"]) == 2
    config = directory.configuration()
    assert (config.rollout.replicas, config.deadlines.step_s) == (1, 45.0)
    assert "The run was resumed with changes: pipeline.steps from 1 to 2" in directory.report.read_text()
    for path in list(directory.checkpoints.iterdir()):  # a crash of the machine that left half-written ones alone
        path.rename(path.with_name(f".{path.name}.partial"))
    capsys.readouterr()
    assert main(["run", "--resume", "run", "--plain", "--set", "pipeline.steps=4"]) == 2
    err = capsys.readouterr().err
    # More than two may have been on disk: an older one goes once a newer one is whole.
    assert ".2.partial, .3.partial), expected the checkpoint of version 2 or 3" in err
    assert "found only half-written ones (" in err
