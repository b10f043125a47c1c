"""Two replicas of the local host run vLLM beside the trainer; one of them is killed."""

import json
import subprocess
import sys
from importlib.util import find_spec

import pytest

pytestmark = pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed")


@pytest.mark.deep
@pytest.mark.timeout(1200)
def test_a_killed_replica_ends_neither_the_other_nor_the_trainer(tmp_path):
    # vLLM's engines shared a global variable of their process (a damaged heap), and the first that ended took the torch group
    # of the trainer with it.
    run = tmp_path / "run"
    settings = ["pipeline.steps=6", "pipeline.prompts_per_step=8", "rollout.engine=vllm", "warm_start.steps=20"]
    settings += ["evaluation.controls=false", "task.held_out_size=8", "executor.name=local"]
    command = [sys.executable, "-m", "tailrace.cli.main", "run", "laminar", "--plain", "--run-dir", str(run)]
    command += [word for setting in settings for word in ("--set", setting)]
    done = subprocess.run([*command, "--kill", "replica@step2"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    summary = json.loads((run / "summary.json").read_text())
    assert (summary["steps"], summary["lost_trajectories"], summary["consumed_twice"]) == (6, 0, 0)
    assert [fault["role"] for fault in summary["faults"]] == ["replica"]
    lines = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()[1:]]
    down = [(event["role"], event["id"]) for line in lines for event in line["events"] if event["is"] == "Down"]
    assert [role for role, _ in down] == ["replica"], down
