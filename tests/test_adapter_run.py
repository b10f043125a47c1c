"""A whole run that trains an adapter: it alone is saved, a killed trainer comes back, and the audit finds the same bits."""

import json

import pytest
import torch
from transformers import AutoModelForCausalLM

from tailrace.cli.main import main
from tailrace.reward.tasks import write_jsonl
from tailrace.trainer.small import build_model
from tailrace.trainer.tokenizer import train_tokenizer

pytest.importorskip("peft")

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

[trainer]
adapter = { rank = 4, alpha = 8 }
options = { lr = 1e-2, threads = 1 }

[evaluation]
every = 0
controls = false
"""


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (
            ('trainer.adapter.targets=["c_attn"]',),
            "'trainer.adapter': found adapter targets c_attn, which the model lacks",
        ),
        (("trainer.backend=megatron",), "'trainer.backend': found an adapter of rank 8 with the backend 'megatron'"),
        (("trainer.processes=2",), "expected one process or no controls"),
        (("trainer.options.adapter={}",), "'trainer.options': found adapter"),
    ],
)
def test_what_does_not_fit_is_one_line_before_anything_starts(tmp_path, capsys, settings, says):
    command = ["run", "laminar", "--dry-run", "--run-dir", str(tmp_path / "run"), "--set", "trainer.adapter.rank=8"]
    assert main([*command, *(word for one in settings for word in ("--set", one))]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert says in line
    assert not (tmp_path / "run").exists()


def test_only_the_adapter_is_trained_saved_and_published(tmp_path, capsys):
    rows = [{"prompt": f"{a} + {b} = ", "answer": str(a + b)} for a in range(10) for b in range(10)]
    write_jsonl(tmp_path / "train.jsonl", rows[8:])
    write_jsonl(tmp_path / "held_out.jsonl", rows[:8])
    size = train_tokenizer([row["prompt"] for row in rows], tmp_path / "model", vocab_size=64)
    build_model(tmp_path / "model", vocab_size=size, hidden=32, layers=2, heads=2, kv_heads=1, head_dim=32, mlp=64)
    (tmp_path / "run.toml").write_text(CONFIG)
    run = tmp_path / "run"
    command = ["run", str(tmp_path / "run.toml"), "--run-dir", str(run), "--plain", "--executor", "local"]
    assert main([*command, "--kill", "trainer@step2:backward"]) == 0, capsys.readouterr().err
    summary = json.loads((run / "summary.json").read_text())
    assert summary["steps"] == 4
    assert summary["restarts"]["trainer"] == 1
    assert summary["lost_trajectories"] == summary["contradictions"] == 0
    saved = run / "checkpoints" / "4"
    assert not list(saved.glob("model*.safetensors"))
    assert (saved / "adapter_model.safetensors").stat().st_size < 50_000
    assert main(["audit", str(run)]) == 0, capsys.readouterr().err
    assert main(["export", str(run), "--merge", "--out", str(tmp_path / "whole")]) == 0
    before = AutoModelForCausalLM.from_pretrained(tmp_path / "model").state_dict()
    after = AutoModelForCausalLM.from_pretrained(tmp_path / "whole").state_dict()
    assert after.keys() == before.keys()
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed
    assert all(name.endswith("proj.weight") for name in changed)
