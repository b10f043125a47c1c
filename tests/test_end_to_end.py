"""A whole run from the command line, on the engine that is chosen by itself: prompt files, a killed replica and driver."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter

import pytest

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
    from tailrace.trainer.small import build_model
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


def steps_done(run):
    log = run / "events.jsonl"
    return log.read_text().count('"is":"Stepped"') if log.exists() else 0


@pytest.mark.long
@pytest.mark.timeout(600)
def test_files_in_and_nothing_lost_whatever_is_killed(config, tmp_path):
    run = tmp_path / "run"
    first = tailrace("run", config, "--run-dir", run, "--plain", "--kill", "replica@step1")
    deadline = time.monotonic() + 240
    while steps_done(run) < 3 and first.poll() is None and time.monotonic() < deadline:
        time.sleep(0.1)
    assert first.poll() is None, first.communicate()[0]
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    status = tailrace("status", run)
    said, _ = status.communicate(timeout=60)
    assert status.returncode == 0, said

    second = tailrace("run", "--resume", run, "--plain")
    said, _ = second.communicate(timeout=300)
    assert second.returncode == 0, said

    summary = json.loads((run / "summary.json").read_text())
    assert summary["steps"] == STEPS
    assert summary["lost_trajectories"] == 0
    assert summary["consumed_twice"] == 0
    assert summary["replica_restarts"] >= 1
    assert summary["trained_trajectories"] == STEPS * PROMPTS * SAMPLES
    trained = [json.loads(line) for line in (run / "trajectories" / "trained.jsonl").read_text().splitlines()]
    assert Counter(row["group"] for row in trained) == dict.fromkeys(range(STEPS * PROMPTS), SAMPLES)
    assert (run / "report.html").stat().st_size > 10_000
    assert any(run.joinpath("tensorboard").iterdir())

    again = tailrace("run", config, "--run-dir", run)
    said, _ = again.communicate(timeout=60)
    assert again.returncode == 2, said
    assert said.count("\n") == 1, said
