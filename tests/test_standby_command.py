"""The shipped configuration of standbys, typed on a machine of a Ray cluster of several that others started."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tailrace import contracts as c
from tailrace.pipeline.run.directory import RunDirectory
from tailrace.pipeline.run.eventlog import read_log
from tailrace.pipeline.run.run_checks import check_finished_run
from tailrace.pipeline.testing.ray_clusters import PORT, joined_cluster, lose
from tailrace.pipeline.testing.small_run import make_files
from tailrace.processes.namespaces import why_not
from tailrace.runtime.executor.deployment import TRAINER

pytest.importorskip("torch", reason="a real trainer trains a real model")
pytest.importorskip("ray")

SHIPPED = Path(__file__).parents[1] / "configs/robustrl/gsm8k-7b-standby.toml"
STEPS = 5
SMALL = {  # what a cluster of three small machines without GPUs has otherwise than three of eight GPUs
    "task.verifier": "exact",
    "task.held_out_size": 16,
    "pipeline.steps": STEPS,
    "pipeline.prompts_per_step": 4,
    "pipeline.samples_per_prompt": 4,
    "pipeline.prompts_per_replica": 4,
    "rollout.engine": "transformers",
    "rollout.options": "{ max_num_seqs = 16, max_model_len = 64, threads = 1 }",
    "rollout.replicas": 3,
    "rollout.max_tokens": 24,
    "trainer.processes": 1,
    "trainer.options.dtype": "float32",
    "trainer.options.threads": 1,
    "relay.count": 2,
    "executor.device": "cpu",
    "evaluation.every": 0,
    "deadlines.silent_s": 300,  # they share two cores, which other tests may use
}


@pytest.mark.deep
@pytest.mark.timeout(1800)
@pytest.mark.skipif(bool(why_not()), reason=why_not() or "they can be made")
def test_the_shipped_command_takes_a_standby_when_its_trainer_loses_a_machine(tmp_path):
    make_files(tmp_path / "files")
    run = RunDirectory(tmp_path / "run")
    files = {"task.train": "train.jsonl", "task.held_out": "held_out.jsonl", "model.path": "model"}
    changes = {**{key: tmp_path / "files" / name for key, name in files.items()}, **SMALL}
    settings = [word for key, value in changes.items() for word in ("--set", f"{key}={value}")]
    # the head has no devices; those of the others do for the trainer and its replicas, and none is spare
    with joined_cluster(3, "--num-gpus=2", head=("--num-gpus=0",)) as (found, environment):
        by_address = {machine.address: machine for machine in found}
        address = f"{found[0].address}:{PORT}"
        command = [sys.executable, "-m", "tailrace.cli.main", "run", str(SHIPPED), "--ray-address", address, *settings]
        typed = found[0].start(
            [*command, "--run-dir", str(run.root), "--plain"],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:
            said, lost = loses_the_trainers(typed, run, by_address)
        finally:
            typed.kill()
        assert typed.returncode == 0, said[-6000:]
    findings, summary = check_finished_run(run), json.loads(run.summary.read_text())
    assert findings.clean, findings
    assert findings.steps >= STEPS
    assert summary["lent_machines"] == 1
    ups = [event for instant in read_log(run.events) for event in instant.events if isinstance(event, c.Up)]
    trained_on = [up.machine for up in ups if up.role == TRAINER]
    assert trained_on[0] == lost
    assert trained_on[-1] not in ("", lost)
    assert "gives its machine to trainer 0" in said


def loses_the_trainers(typed, run, machines):
    """Follow the command to its end; lose its trainer's machine after two steps. Returns what it said, and who was lost."""
    lost = ""
    while True:
        try:
            return typed.communicate(timeout=0.5)[0], lost
        except subprocess.TimeoutExpired:
            status = json.loads(run.status.read_text()) if run.status.exists() else {}
            if not lost and status.get("step", 0) >= 2 and "trainer 0" in status["seats"]:
                lost = next(address for address in machines if address in status["seats"]["trainer 0"])
                lose([machines[lost]])
