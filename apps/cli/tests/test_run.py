"""How a run ends at the terminal: done, failed, interrupted. And one that is really interrupted."""

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tailrace.cli.main import main
from tailrace.cli.runs.control import control
from tailrace.cli.runs.controller_process import LOG
from tailrace.controller.evaluations import EvaluationResult
from tailrace.pipeline.config.target import configuration
from tailrace.pipeline.errors import ConfigError
from tailrace.pipeline.run.directory import RunDirectory, write_json
from tailrace.pipeline.run.figures.results import results_of
from tailrace.pipeline.run.figures.status import RunStatus
from tailrace.runtime.errors import RunFailedError


def binary(name, step, right, problems=256):
    """An evaluation whose rewards are 0 or 1."""
    correct = [place < right * problems for place in range(problems)]
    return EvaluationResult(0, name, step, 0.0, [float(one) for one in correct], list(correct), [9] * problems)


MEASURED = results_of(
    [binary("sampled", 0, 0.33), binary("greedy", 0, 0.21), binary("sampled", 40, 0.70)],
    [binary("sampled", 0, 0.39)],
    baseline="warm start",
)
SUMMARY: dict[str, Any] = {
    "evaluation": MEASURED.plain(),
    "steps": 40,
    "trained_trajectories": 10_240,
    "tokens_per_s": 2131.0,
    "staleness_mean": 1.18,
    "staleness_max": 3,
    "staleness_bound": None,
    "partial_rollout": False,
    "repacks": 6,
    "restarts": {"trainer": 0, "replica": 1},
    "prompts": {
        "admitted": 1300,
        "trained": 1280,
        "filtered": {"no signal": 20},
        "failed": 0,
        "failed_because": {},
        "lost": 0,
    },
    "lost_trajectories": 0,
    "contradictions": 0,
    "wall_s": 316.0,
}


class HereProcess:
    """A controller in this process, which is over once it has its order."""

    pid = os.getpid()

    def order(self, order):
        with (Path(order.root) / LOG).open("w") as log, contextlib.redirect_stderr(log):
            self._status = control(order)

    def poll(self):
        return self._status

    def kill(self):
        pass


@pytest.fixture
def launched(monkeypatch, tmp_path):
    """Replaces the run by a function; returns what it was started with."""
    monkeypatch.chdir(tmp_path)
    calls = []

    def replace(outcome):
        def launch(config, directory, report):
            calls.append((config, directory))
            status = RunStatus(phase="training", app=config.app, steps=config.pipeline.steps, pid=os.getpid())
            write_json(directory.status, dataclasses.asdict(status))
            if isinstance(outcome, BaseException):
                raise outcome
            write_json(directory.summary, outcome)
            return outcome

        monkeypatch.setattr("tailrace.pipeline.run.launching.launch.launch", launch)
        monkeypatch.setattr("tailrace.cli.runs.run.ControllerProcess", HereProcess)
        return calls

    return replace


def test_a_run_that_ends_well(launched, capsys):
    calls = launched(SUMMARY)
    assert (
        main(["run", "laminar", "--run-dir", "mine", "--seed", "7", "--kill", "replica@60s", "--executor", "local"])
        == 0
    )
    config, directory = calls[0]
    assert (config.seed, config.faults, config.executor.name) == (7, ("replica@60s",), "local")
    assert directory.root == Path("mine")
    out, err = capsys.readouterr()
    words = " ".join(out.split())
    assert "Held-out accuracy rose from 33.2 % to 70.3 %" in words
    assert (
        "RL beats every control that was measured, in accuracy: the best control without RL (continued fine-tuning, sampled) "
        "reaches 39.1 %" in words
    )
    assert "accuracy after 70.3 % ± 2.9" in words
    assert "reward" not in words
    assert "2,131 tokens/s" in words
    assert "lost trajectories 0" in words
    assert "repacks, restarts 6, 1 (1 replica)" in words
    assert "1,300 admitted = 1,280 trained on + 20 filtered (20 no signal) + 0 failed; 0 lost" in words
    assert "mine/report.html" in words
    assert err == ""


def test_prompts_that_were_dropped_or_failed_are_told(launched, capsys):
    prompts = {
        "admitted": 1303,
        "failed": 3,
        "failed_because": {"not-scored": 1, "refused": 2},
        "failed_words": {"not-scored": "the verifier died", "refused": "a prompt of 601 tokens"},
    }
    rows = {"train": {"rows": 5_000, "dropped": 7, "truncated": 0, "most_tokens": 512}}
    launched({**SUMMARY, "prompts": SUMMARY["prompts"] | prompts, "prompt_rows": rows})
    assert main(["run", "laminar", "--run-dir", "mine"]) == 0
    words = " ".join(capsys.readouterr().out.split())
    for expected in (
        "3 failed (1 not scored, 2 refused); 0 lost",
        "rows of task.train: 7 of 5,000 dropped: longer than 512 tokens",
        "1 group failed (not scored), the first because: the verifier died",
        "2 groups failed (refused), the first because: a prompt of 601 tokens",
    ):
        assert expected in words


def graded(step, digits, right=None, problems=200):
    """An evaluation with 0.2 for any digit and 1 for the right answer; `right` None: the verifier says nothing of that."""
    rewards = [
        1.0 if place < (right or 0) * problems else 0.2 * (place < digits * problems) for place in range(problems)
    ]
    correct = [None if right is None and reward == 0.2 else reward == 1.0 for reward in rewards]
    return EvaluationResult(step, "sampled", step, 0.0, rewards, correct, [9] * problems)


def test_a_reward_that_rises_alone_is_no_accuracy(launched, capsys):
    measured = results_of([graded(0, 0.1, 0.01), graded(40, 0.95, 0.0)], baseline="model as given")
    launched({**SUMMARY, "evaluation": measured.plain()})
    assert main(["run", "laminar", "--run-dir", "mine"]) == 0
    words = " ".join(capsys.readouterr().out.split())
    for expected in (
        "Held-out accuracy fell from 1.0 % to 0.0 %",
        "Held-out reward rose from 0.028 to 0.190, by 0.162 (200 problems, sampled; standard error 0.003).",
        "Reward rose from 0.028 to 0.190, accuracy did not: 1.0 % before, 0.0 % after. Look at what earns the reward.",
        "accuracy before 1.0 % ± 0.7",
        "reward after 0.190 ± 0.003",
    ):
        assert expected in words


def test_without_a_word_on_what_is_right_there_is_no_accuracy(launched, capsys):
    measured = results_of([graded(0, 0.1), graded(40, 0.95)], baseline="model as given")
    launched({**SUMMARY, "evaluation": measured.plain()})
    assert main(["run", "laminar", "--run-dir", "mine"]) == 0
    words = " ".join(capsys.readouterr().out.split())
    assert "Held-out reward rose from 0.020 to 0.190" in words
    assert "accuracy not known: rewards are graded, and the verifier does not say which answers are correct" in words
    assert "%" not in words.partition("steps 40")[0]


def test_sources_and_rounds(launched, capsys):
    mixed = []
    for step, sums in ((0, 0.5), (40, 0.75)):
        one = EvaluationResult(step, "sampled", step)
        for place in range(8):
            one.answered(9, float(place < 8 * sums), None, "sums")
            one.answered(9, 0.0, None, "programs")
        mixed.append(one)
    rounds = {"rounds_short": 8, "rounds_long": 2, "speculation_waste": 0.25}
    prompts = {**SUMMARY["prompts"], "queued": 16}
    measured = results_of(mixed, baseline="warm start")
    launched({**SUMMARY, **rounds, "prompts": prompts, "evaluation": measured.plain()})
    assert main(["run", "rollpacker", "--run-dir", "mine"]) == 0
    words = " ".join(capsys.readouterr().out.split())
    for expected in (
        "of sums 50.0 % ± 17.7 before, 75.0 % ± 15.3 after",
        "of programs 0.0 % ± 0.0 before, 0.0 % ± 0.0 after",
        "rounds 8 short, 2 long; 16 prompts wait for the next long one",
        "25.0 % of the tokens were generated by what lost a race",
    ):
        assert expected in words


def test_a_run_that_interrupts_says_how_often(launched, capsys):
    interrupting = {
        "staleness_bound": 3,
        "partial_rollout": True,
        "repacks": 0,
        "interrupting_pulls": 94,
        "migrated_trajectories": 95,
        "resumed_on_newer": 3_695,
        "contradictions": 2,
    }
    launched({**SUMMARY, **interrupting})
    assert main(["run", "staleflow", "--run-dir", "mine"]) == 0
    words = " ".join(capsys.readouterr().out.split())
    for expected in (
        "1.18 mean, 3 max, bound 3", "94 pulls interrupted work, 95 trajectories migrated", "3,695 times", "restarts 1",
        "contradictions 2 snapshots",
    ):  # fmt: skip
        assert expected in words
    assert "repacks" not in words


def test_a_run_without_a_directory_gets_one_named_after_app_and_time(launched):
    calls = launched(SUMMARY)
    assert main(["run", "laminar"]) == 0
    assert calls[0][1].root.parent == Path("runs")
    assert calls[0][1].root.name.startswith("laminar-2")


@pytest.mark.parametrize("error", [RunFailedError("every replica is down"), RuntimeError("boom\nmore")])
def test_a_run_that_fails(launched, capsys, error):
    launched(error)
    assert main(["run", "laminar", "--run-dir", "mine"]) == 1
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    for words in (
        "tailrace: the run failed: ",
        str(error).splitlines()[0],
        "mine/error.log",
        "tailrace run --resume mine",
    ):
        assert words in err
    assert "Traceback" in Path("mine/error.log").read_text()


def test_a_run_that_is_interrupted(launched, capsys):
    launched(KeyboardInterrupt())
    assert main(["run", "laminar", "--run-dir", "mine"]) == 130
    assert capsys.readouterr().err == "tailrace: interrupted; go on with: tailrace run --resume mine\n"
    RunDirectory.open(Path("mine")).lock()


def test_a_mistake_found_late_leaves_nothing_behind(launched, capsys):
    launched(ConfigError("key 'trainer.options': found the unknown option 'lrr'"))
    assert main(["run", "laminar", "--run-dir", "mine"]) == 2
    assert "lrr" in capsys.readouterr().err
    assert not Path("mine").exists()


def test_layers_are_laid_over_each_other(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text('app = "laminar"\nseed = 3\nfaults = ["trainer@step5"]\n[pipeline]\nsteps = 7\n')
    config = configuration(
        str(path), settings=["pipeline.steps=9", "trainer.options.lr=1e-6"], faults=[("kill", "replica@step2")]
    )
    assert config.seed == 3
    assert config.pipeline.steps == 9
    assert config.pipeline.sync.name == "on-idle"
    assert config.trainer.options == {"lr": 1e-6}
    assert config.faults == ("trainer@step5", "replica@step2")


@pytest.mark.deep
def test_ctrl_c_in_a_real_run(tmp_path):
    command = [sys.executable, "-m", "tailrace.cli.main", "run", "laminar", "--plain", "--run-dir", "mine"]
    environment = {**os.environ, "TAILRACE_CACHE": str(tmp_path / "cache"), "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        command,
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background jobs ignore it
    ) as process:
        try:
            assert process.stdout is not None
            assert any("preparing the task" in line for line in process.stdout)  # it starts Ray before
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=120)
        finally:
            process.kill()
    first, last = err.splitlines()
    assert first.startswith("tailrace: stopping (SIGINT): the log is safe")
    assert last == "tailrace: interrupted; go on with: tailrace run --resume mine"
    assert process.returncode == 130
    assert not RunDirectory.open(tmp_path / "mine").running()


HANGS = """
import sys, threading, time
from tailrace.cli.runs import control
from tailrace.contracts import Place
from tailrace.runtime.executor.seam import RoleSpec
from tailrace.runtime.hosts.local import LocalHost

began = threading.Event()

def hangs():
    began.set()
    time.sleep(600)

def fails(order):
    host = LocalHost()
    host.spawn("replica", "0", 1, RoleSpec(hangs), Place())
    began.wait(60)
    host.close()
    return 1

control.control, control.END_S = fails, 0.5
sys.exit(control.main())
"""


def test_a_controller_ends_although_a_role_in_one_of_its_threads_hangs(tmp_path):
    order = json.dumps({"work": "launch", "root": str(tmp_path)}).encode() + b"\n"
    with subprocess.Popen([sys.executable, "-c", HANGS], stdin=subprocess.PIPE) as process:
        try:
            process.stdin.write(order)
            process.stdin.flush()
            assert process.wait(60) == 1
        finally:
            process.kill()
