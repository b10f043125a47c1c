"""A whole run with another backend than FSDP2, or a critic: a killed trainer comes back, the audit finds the same bits."""

import json
from importlib.util import find_spec

import pytest
import torch
from transformers import AutoModelForCausalLM

from tailrace.cli.main import main
from tailrace.reward.tasks import write_jsonl
from tailrace.trainer.small import build_model
from tailrace.trainer.tokenizer import train_tokenizer

CONFIG = """
app = "laminar"

[task]
train = "train.jsonl"
held_out = "held_out.jsonl"
verifier = "numeric"
held_out_size = 8

[model]
path = "model"

[pipeline]
steps = 4
prompts_per_step = 4
samples_per_prompt = 4
prompts_per_replica = 4
buffer_prompts = 16

[rollout]
engine = "transformers"
replicas = 1
max_tokens = 16
options = { threads = 1, max_model_len = 48, max_num_seqs = 16 }

[evaluation]
every = 0
controls = false
"""
RANKS = {  # of threads in this process, or of processes on Ray
    "deepspeed": ("local", 'backend = "deepspeed"\noptions = { lr = 1e-2, threads = 1 }'),
    "deepspeed zero-3": (
        "ray",
        'backend = "deepspeed"\nprocesses = 2\noptions = { lr = 1e-2, threads = 1, zero_stage = 3 }',
    ),
    "fsdp2 with a critic": (
        "local",
        'loss = "ppo"\ncritic = { warmup_steps = 1 }\noptions = { lr = 1e-2, threads = 1 }',
    ),
    "megatron": ("local", 'backend = "megatron"\noptions = { lr = 1e-2, threads = 1 }'),
    "megatron tensor-parallel": (
        "ray",
        'backend = "megatron"\nprocesses = 2\noptions = { lr = 1e-2, threads = 1, tensor_parallel = 2 }',
    ),
}


DEEP = [pytest.mark.deep, pytest.mark.timeout(900)]


@pytest.mark.parametrize(
    "name",
    [
        "deepspeed",
        "fsdp2 with a critic",
        "megatron",
        pytest.param("deepspeed zero-3", marks=DEEP),
        pytest.param("megatron tensor-parallel", marks=DEEP),
    ],
)
def test_it_trains_comes_back_and_is_exported(name, tmp_path, capsys):
    if name.split()[0] != "fsdp2" and find_spec(name.split()[0]) is None:
        pytest.skip(f"needs tailrace-trainer[{name.split()[0]}]")
    executor, trainer = RANKS[name]
    rows = [{"prompt": f"{a} + {b} = ", "answer": str(a + b)} for a in range(10) for b in range(10)]
    write_jsonl(tmp_path / "train.jsonl", rows[8:])
    write_jsonl(tmp_path / "held_out.jsonl", rows[:8])
    size = train_tokenizer([row["prompt"] for row in rows], tmp_path / "model", vocab_size=64)
    build_model(tmp_path / "model", vocab_size=size, hidden=32, layers=2, heads=4, kv_heads=2, head_dim=16, mlp=64)
    (tmp_path / "run.toml").write_text(f"{CONFIG}\n[trainer]\n{trainer}\n")
    run = tmp_path / "run"
    command = ["run", str(tmp_path / "run.toml"), "--run-dir", str(run), "--plain", "--executor", executor]
    assert main([*command, "--kill", "trainer@step2:backward"]) == 0, capsys.readouterr().err
    summary = json.loads((run / "summary.json").read_text())
    assert summary["steps"] == 4
    assert summary["restarts"]["trainer"] == 1
    assert summary["lost_trajectories"] == summary["contradictions"] == 0
    assert main(["audit", str(run)]) == 0, capsys.readouterr().err
    assert main(["export", str(run), "--out", str(tmp_path / "whole")]) == 0
    before = AutoModelForCausalLM.from_pretrained(tmp_path / "model").state_dict()
    after = AutoModelForCausalLM.from_pretrained(tmp_path / "whole").state_dict()
    assert after.keys() == before.keys()
    assert all(not torch.equal(before[name], after[name]) for name in before if name.endswith("proj.weight"))
    if name == "fsdp2 with a critic":
        told = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        steps = [step for step in told if "value_loss" in step]
        assert [step["lr"] for step in steps] == [0.0, *[0.01] * (len(steps) - 1)]
        again = [step["value_loss"] for step in steps if step["step"] == 2]  # the trainer was killed in it
        assert len(set(again)) == 1
        last = max((run / "checkpoints").iterdir(), key=lambda path: int(path.name)) / "trainer.json"
        saved = last.read_bytes()
        capsys.readouterr()
        for change in ("trainer.loss.name=dapo", "trainer.advantages=group"):
            assert main(["run", "--resume", str(run), "--plain", "--set", "pipeline.steps=5", "--set", change]) == 2
            (line,) = capsys.readouterr().err.splitlines()
            assert "key 'trainer.critic': found settings of a critic with advantages 'group'" in line
        assert last.read_bytes() == saved
