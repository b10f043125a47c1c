"""A whole run from the command line, on the engine that is chosen by itself: prompt files, a killed replica and driver."""

import html
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from tailrace.cli.main import main
from tailrace.pipeline.run.directory import RunDirectory
from tailrace.pipeline.run.launching.attaching import SILENT_S
from tailrace.trajstore import read_trained

STEPS, PROMPTS, SAMPLES = 6, 4, 4
CONFIG = """
app = "laminar"

[task]
train = "{root}/train.jsonl"
held_out = "{root}/held_out.parquet"
verifier = "numeric"
held_out_size = 16

[model]
path = "{root}/model"

[pipeline]
steps = {steps}
prompts_per_step = {prompts}
samples_per_prompt = {samples}
prompts_per_replica = 4
buffer_prompts = 16

[rollout]
replicas = 2
max_tokens = 24
options = {{ threads = 1, max_model_len = 64, max_num_seqs = 64 }}

[trainer.options]
lr = 1e-3
threads = 1

[evaluation]
every = 3
"""


@pytest.fixture
def config(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    from tailrace.reward.tasks import write_jsonl
    from tailrace.trainer.small_model import build_model
    from tailrace.trainer.tokenizer import train_tokenizer

    rows = [{"prompt": f"{a} + {b} = ", "answer": str(a + b)} for a in range(10) for b in range(10)]
    write_jsonl(tmp_path / "train.jsonl", rows[16:])
    pq.write_table(pa.Table.from_pylist(rows[:16]), tmp_path / "held_out.parquet")
    size = train_tokenizer([row["prompt"] for row in rows], tmp_path / "model", vocab_size=64)
    build_model(tmp_path / "model", vocab_size=size, hidden=32, layers=2, heads=2, kv_heads=1, head_dim=32, mlp=64)
    path = tmp_path / "config.toml"
    path.write_text(CONFIG.format(root=tmp_path, steps=STEPS, prompts=PROMPTS, samples=SAMPLES))
    return path


def tailrace(*arguments):
    return subprocess.Popen(
        [sys.executable, "-m", "tailrace.cli.main", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.fixture
def here(capsys):
    """Runs a command in this process, which has imported what a new one would import again. Returns what it prints."""

    def run(*words, status=0):
        capsys.readouterr()
        found = main([str(word) for word in words])
        said = "".join(capsys.readouterr())
        assert found == status, said
        return said

    return run


def steps_done(run):
    log = run / "events.jsonl"
    return log.read_text().count('"is":"Stepped"') if log.exists() else 0


GRADED = """
def verify(response, answer, metadata):
    correct = response.strip() == answer
    return {"reward": 1.0 if correct else 0.2 * any(letter.isdigit() for letter in response), "correct": correct}
"""


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.deep
def test_status_summary_and_report_say_the_same_of_a_graded_run(config, tmp_path, here):
    (tmp_path / "graded.py").write_text(GRADED)
    run, own = tmp_path / "run", f"task.verifier={tmp_path / 'graded.py'}:verify"
    # What is compared does not depend on the engine; this one is soon up.
    settings = ("--set", own, "--set", "rollout.engine=transformers")
    said = here("run", config, "--run-dir", run, "--plain", "--executor", "local", *settings)
    summary = json.loads((run / "summary.json").read_text())
    status = json.loads(here("status", "--json", run))
    shown = " ".join(here("status", run).split())
    page = (run / "report.html").read_text()
    facts = {name: html.unescape(value) for name, value in re.findall(r"<dt>([^<]*)</dt><dd>([^<]*)</dd>", page)}
    rows = dict(re.findall(r"<td[^>]*>((?:before|after) RL, sampled)</td>(.*?)</tr>", page, re.DOTALL))

    assert (status["phase"], status["alive"], status["over"], status["replicas"]) == ("done", False, True, [])
    assert f"done step {STEPS} of {STEPS}" in shown
    assert "generat" not in shown
    assert summary["steps"] == status["step"] == STEPS
    assert facts["steps"] == f"{STEPS} of {STEPS}"
    for when, key in (("before", "_before"), ("after", "")):
        accuracy, reward = summary[f"eval_accuracy_{when}"], summary[f"eval_reward_{when}"]
        assert reward > accuracy  # digits earn something, and a model of random weights prints them
        assert (accuracy, reward) == (status[f"accuracy{key}"], status[f"held_out_reward{key}"])
        assert f"{100 * accuracy:.1f} %" in rows[f"{when} RL, sampled"]
        assert f"accuracy {when} {100 * accuracy:.1f} %" in " ".join(said.split())
        assert f"{reward:.3f}" in rows[f"{when} RL, sampled"]
        assert f"reward {when} {reward:.3f}" in " ".join(said.split())
    assert f"held-out reward {summary['eval_reward_after']:.3f}" in shown
    assert "model as given" in summary["controls"].popitem()[0]
    assert "warm start" not in said
    assert facts["staleness"].startswith(f"mean {summary['staleness_mean']:.2f}, max {summary['staleness_max']}")
    assert f"{status['staleness_mean']:.2f} mean, {status['staleness_max']} max" in shown
    assert f"{summary['staleness_mean']:.2f} mean" in shown
    assert int(facts["trajectories trained on"]) == summary["trained_trajectories"] == STEPS * PROMPTS * SAMPLES
    assert int(facts["response tokens trained on"].replace(",", "")) == summary["trained_tokens"]
    assert facts["trained tokens per second"] == f"{summary['tokens_per_s']:,.0f}"
    assert f"trained {facts['trained tokens per second']} tokens/s" in shown
    assert int(facts["repacks"]) == summary["repacks"] == status["repacks"]
    assert (facts["restarts"], summary["replica_restarts"], status["replica_restarts"]) == ("0", 0, 0)

    moved = run.rename(tmp_path / "moved")
    here("audit", moved)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_files_in_and_nothing_lost_whatever_is_killed(config, tmp_path, deep, here):
    run = tmp_path / "run"
    # An engine takes as long to start as the steps do: three start, not five. All suites of hosts kill one of several.
    few = () if deep else ("--set", "rollout.replicas=1")
    first = tailrace("run", config, "--run-dir", run, "--plain", "--kill", "replica@step1", *few)
    deadline = time.monotonic() + 240
    while steps_done(run) < 3 and first.poll() is None and time.monotonic() < deadline:
        time.sleep(0.1)
    assert first.poll() is None, first.communicate()[0]
    controller = int((run / "lock").read_text())  # a command that says it would take as long as the steps that are left
    for pid in (first.pid, controller):  # nobody is left who could let another controller attach
        os.kill(pid, signal.SIGKILL)
    first.wait()
    until(lambda: not RunDirectory(run).running(), None)
    found = json.loads(here("status", "--json", run))
    assert (found["step"], found["alive"], found["over"], found["replicas"]) == (steps_done(run), False, True, [])

    second = tailrace("run", "--resume", run, "--plain")
    said, _ = second.communicate(timeout=300)
    assert second.returncode == 0, said

    summary = json.loads((run / "summary.json").read_text())
    assert summary["steps"] == STEPS
    assert summary["lost_trajectories"] == 0
    assert summary["consumed_twice"] == 0
    assert summary["replica_restarts"] >= 1
    assert summary["trained_trajectories"] == STEPS * PROMPTS * SAMPLES
    trained = list(read_trained(RunDirectory(run).trained))
    assert Counter(row["group"] for row in trained) == dict.fromkeys(range(STEPS * PROMPTS), SAMPLES)
    assert (run / "report.html").stat().st_size > 10_000
    assert any(run.joinpath("tensorboard").iterdir())

    said = here("run", config, "--run-dir", run, status=2)
    assert said.count("\n") == 1, said


def attached(run):
    log = run / "events.jsonl"
    return log.read_text().count('"is":"Attached"') if log.exists() else 0


def members(run):
    said, _ = tailrace("status", "--json", run).communicate(timeout=120)
    found = json.loads(said)
    return found["pid"], {(one["role"], one["id"]): one["pid"] for one in found["members"]}


def until(done, process):
    deadline = time.monotonic() + 400
    while not done() and (process is None or process.poll() is None) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert done(), process and process.communicate(timeout=60)[0]


def goes_on(run, process=None):
    steps = steps_done(run)
    until(lambda: steps_done(run) > steps, process)


@pytest.mark.deep
@pytest.mark.long
@pytest.mark.timeout(1500)
def test_controllers_are_replaced_while_members_live_on(config, tmp_path):
    """The first is killed by script, the second loses its watcher, is stopped, replaced and wakes up, the third is killed."""
    run = tmp_path / "run"
    quick = ("rollout.engine=transformers", "rollout.options={threads=1,max_num_seqs=64}", "pipeline.steps=500")
    begins = ("--run-dir", run, "--plain", *(part for one in quick for part in ("--set", one)))
    watcher = tailrace("run", config, *begins, "--kill", "controller@step3")
    until(lambda: attached(run) == 1, watcher)
    goes_on(run, watcher)
    second, lived = members(run)
    assert watcher.pid != second
    assert all(lived.values())

    watcher.kill()
    said, _ = watcher.communicate()
    assert "was ended by SIGKILL; another one attaches, and nobody restarts" in said
    goes_on(run)
    assert tailrace("attach", run).wait(120) == 2  # it is at work

    os.kill(second, signal.SIGSTOP)
    time.sleep(SILENT_S + 2)
    watcher = tailrace("attach", run, "--plain")
    until(lambda: attached(run) == 2, watcher)
    os.kill(second, signal.SIGCONT)
    until(lambda: not Path(f"/proc/{second}").exists(), watcher)
    assert "another controller has taken this one's place" in (run / "controller.log").read_text()
    goes_on(run, watcher)

    third, _ = members(run)
    os.kill(third, signal.SIGKILL)
    until(lambda: attached(run) == 3, watcher)
    goes_on(run, watcher)
    fourth, living = members(run)
    assert fourth not in (second, third)
    assert living == lived
    said, _ = watcher.communicate(timeout=900)
    assert watcher.returncode == 0, said
    summary = json.loads((run / "summary.json").read_text())
    assert (summary["controller_attaches"], summary["restarts_by_attach"]) == (3, 0)
    assert (summary["lost_trajectories"], summary["consumed_twice"]) == (0, 0)
    assert set(summary["restarts"].values()) == {0}
    (fault,) = summary["faults"]
    assert (fault["role"], fault["action"]) == ("controller", "attach")
    assert not (run / "cluster.json").exists()


@pytest.mark.deep
@pytest.mark.long
@pytest.mark.timeout(900)
def test_roles_that_nobody_claims_save_and_stop(config, tmp_path):
    """Watcher and controller are killed, and nobody attaches: members and cluster end by themselves; the run resumes."""
    run = tmp_path / "run"
    quick = ("rollout.engine=transformers", "rollout.options={threads=1,max_num_seqs=64}", "deadlines.unclaimed_s=20")
    settings = tuple(part for one in quick for part in ("--set", one))
    watcher = tailrace("run", config, "--run-dir", run, "--plain", *settings, "--set", "pipeline.steps=150")
    until(lambda: steps_done(run) >= 3, watcher)
    controller, lived = members(run)
    for pid in (watcher.pid, controller):
        os.kill(pid, signal.SIGKILL)
    watcher.communicate()
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in lived.values()), None)
    until(lambda: not (run / "cluster.json").exists(), None)
    done = steps_done(run)
    resumed = tailrace("run", "--resume", run, "--plain", "--set", f"pipeline.steps={done + 2}")
    said, _ = resumed.communicate(timeout=400)
    assert resumed.returncode == 0, said
    summary = json.loads((run / "summary.json").read_text())
    assert (summary["lost_trajectories"], summary["consumed_twice"]) == (0, 0)
