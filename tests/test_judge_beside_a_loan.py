"""Generation, a judge and a trainer that streams gradients share devices: the cell without the judge is lent."""

import json
import subprocess
import sys

import pytest

from tailrace import contracts as c
from tailrace.pipeline.run.directory import RunDirectory
from tailrace.pipeline.run.eventlog import read_log
from tailrace.pipeline.run.run_checks import check_finished_run
from tailrace.pipeline.testing.small_run import make_files

pytest.importorskip("torch", reason="a real trainer trains a real model")
pytest.importorskip("ray")

STEPS = 9
SETTINGS = {
    "task.verifier": "judge",
    "task.held_out_size": 8,
    "pipeline.steps": STEPS,
    "pipeline.prompts_per_step": 8,
    "pipeline.samples_per_prompt": 8,
    "pipeline.prompts_per_replica": 25,
    "pipeline.provisioning": "{ name = 'scale-down', every = 0.01, remembers = 0 }",  # every loan that can be made
    "rollout.engine": "transformers",
    "rollout.options": "{ max_num_seqs = 8, max_model_len = 160, threads = 1, kv_cache_bytes = 4_194_304 }",
    "rollout.replicas": 2,
    "rollout.max_tokens": 128,
    "trainer.processes": 2,
    "trainer.cells": 2,
    "trainer.colocated": True,
    "trainer.options.dtype": "float32",
    "trainer.options.threads": 1,
    "reward.judge.template": "{prompt}{response}",
    "reward.judge.options": "{ yes = '1', no = '0', threads = 1, device = 'cpu' }",
    "executor.device": "cpu",
    "executor.trainer_gpus": 0.5,
    "executor.replica_gpus": 0.3,
    "executor.scorer_gpus": 0.2,
    "evaluation.every": 0,
    "deadlines.silent_s": 60,  # a hung one is noticed after so long; they share two cores, which other tests may use
}
STRUCK = ["kill:scorer@step2", "kill:replica:r1@step3:sleep", "kill:replica:r0@step4", "hang:scorer@step6"]


@pytest.mark.deep
@pytest.mark.timeout(1500)
def test_the_judge_scores_through_every_loan_and_whoever_dies_nothing_is_lost(tmp_path):
    """Three tasks stand on core 0, two on core 1. Only r1 lends; scorer and replicas are struck, in a loan too."""
    model, run = make_files(tmp_path / "files"), RunDirectory(tmp_path / "run")
    files = {"task.train": "train.jsonl", "task.held_out": "held_out.jsonl", "model.path": "model"}
    changes = {key: tmp_path / "files" / name for key, name in files.items()}
    changes |= {"reward.judge.model": model, **SETTINGS}
    config = tmp_path / "run.toml"
    config.write_text('app = "rollpacker"\n')
    command = [sys.executable, "-m", "tailrace.cli.main", "run", str(config), "--run-dir", str(run.root), "--plain"]
    command += [word for key, value in changes.items() for word in ("--set", f"{key}={toml(value)}")]
    command += [word for fault in STRUCK for word in (f"--{fault.split(':')[0]}", fault.partition(":")[2])]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1400, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]
    findings = check_finished_run(run)
    assert findings.clean, findings
    assert findings.steps == STEPS
    instants = list(read_log(run.events))
    lends = [command for instant in instants for command in instant.commands if isinstance(command, c.Lend)]
    assert lends, "no device was lent"
    assert {(lend.replica, lend.cells) for lend in lends} == {("r1", (1,))}
    ups = [event for instant in instants for event in instant.events if isinstance(event, c.Up)]
    cores = {}
    for up in ups:
        cores.setdefault((up.role, up.id), []).append([seat.devices for seat in up.seats])
    (((first,), (second,)),) = cores["trainer", "0"]
    for key, core in {("scorer", "0"): first, ("replica", "r0"): first, ("replica", "r1"): second}.items():
        assert cores[key] == [[(core,)]] * len(cores[key]), f"{key} has changed its place: {cores[key]}"
    restarts = [command for instant in instants for command in instant.commands if isinstance(command, c.Restart)]
    assert {("scorer", "0"), ("replica", "r0"), ("replica", "r1")} <= {(one.role, one.id) for one in restarts}


def toml(value):
    return json.dumps(value) if isinstance(value, bool) else value
